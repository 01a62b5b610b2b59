local n, x, t = tonumber(arg[1]), 42, {}
for i = 1, n do
  x = (x * 16807) % 2147483647
  t[i] = { key = x, name = "room " .. (x % 5000) }
end
table.sort(t, function(a, b) return a.key < b.key end)
local seen, kinds, sum = {}, 0, 0
for i, v in ipairs(t) do
  if not seen[v.name] then seen[v.name] = true; kinds = kinds + 1 end
  sum = (sum + i * (v.key % 1009)) % 1000000007
end
local parts = {}
for i = 1, n do parts[i] = t[i].name end
print(n, kinds, sum, #table.concat(parts, ","))
