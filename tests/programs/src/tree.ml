module M = Map.Make (Int)

let () =
  let x = ref 42 and m = ref M.empty in
  for i = 1 to 200_000 do
    x := (!x * 1103515245 + 12345) land 0x7fffffff;
    m := M.add !x (Array.make 8 i) !m
  done;
  let sum = M.fold (fun k v s -> s + (k land 1023) + v.(3)) !m 0 in
  let b = Bigarray.(Array1.create float64 c_layout 2_000_000) in
  for i = 0 to 1_999_999 do b.{i} <- float i done;
  Printf.printf "%d %d %.0f\n" (M.cardinal !m) sum b.{1_234_567}
