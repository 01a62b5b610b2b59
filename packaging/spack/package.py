# A recipe for Spack. It is unverified: no check of this project runs it. To try it, copy this folder to
# packages/hanare in a Spack repository of yours, set `git` to where the sources are, then: spack install hanare

from spack.package import *


class Hanare(MakefilePackage):
    """Gives unmodified programs the memory of other machines, at user level."""

    git = "file:///path/to/hanare"
    license("Apache-2.0 OR MIT")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("gmake", type="build")

    requires("platform=linux", "target=x86_64:")

    def build(self, spec, prefix):
        make("build")

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(join_path(self.prefix.bin, "hanare"))("--version")
