:- dynamic fact/2.
queens(N, Qs) :- numlist(1, N, Ns), permutation(Ns, Qs), safe(Qs).
safe([]).
safe([Q|Qs]) :- no_attack(Q, Qs, 1), safe(Qs).
no_attack(_, [], _).
no_attack(Q, [Q1|Qs], D) :- Q =\= Q1 + D, Q =\= Q1 - D, D1 is D + 1, no_attack(Q, Qs, D1).
main :-
    queens(6, Qs), print(Qs), nl,
    forall(between(1, 150000, I), (K is I * 7919 mod 10007, assertz(fact(K, I)))),
    aggregate_all(sum(I), fact(77, I), S), aggregate_all(count, fact(_, _), C),
    numlist(1, 200000, L), foldl([X, A, B]>>(B is (A * 31 + X) mod 1000003), L, 0, F),
    print([S, C, F]), nl.
