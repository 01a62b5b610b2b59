"""make_cxx.py N: prints C++ with N instances of the standard library's templates."""
import sys

print("#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n#include <functional>")
for i in range(int(sys.argv[1])):
    print(
        f"struct K{i} {{ int v[{i + 1}]; bool operator<(const K{i} &o) const {{ return v[0] < o.v[0]; }} }};"
        f"int f{i}(const std::vector<K{i}> &in) {{ std::map<K{i}, std::string> m; for (auto &k : in) m[k] += 'x';"
        f" auto c = in; std::sort(c.begin(), c.end()); return m.size() + c.size(); }}"
    )
