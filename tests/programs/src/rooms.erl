-module(rooms).
-export([main/0]).

work(Parent, N) ->
    M = lists:foldl(fun(I, A) -> A#{(I * 7919) rem 20011 => lists:seq(1, I rem 20)} end, #{}, lists:seq(N, N + 20000)),
    Parent ! {N, maps:fold(fun(K, V, S) -> S + K + length(V) end, 0, M), byte_size(binary:copy(<<"room">>, 500000))}.

main() ->
    Self = self(),
    Ns = lists:seq(1, 20),
    [spawn(fun() -> work(Self, N) end) || N <- Ns],
    io:format("~p~n", [[receive {N, S, B} -> {N, S, B} end || N <- Ns]]).
