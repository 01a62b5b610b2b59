set I := 1..60;
param w{i in I} := 11 + (i * 7919) mod 97;
param v{i in I} := w[i] + (i * 104729) mod 31;
var x{I} binary;
maximize value: sum{i in I} v[i] * x[i];
s.t. room: sum{i in I} w[i] * x[i] <= 1200;
s.t. other: sum{i in I} ((i * 31) mod 53) * x[i] <= 700;
end;
