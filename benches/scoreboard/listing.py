"""The programs of the scoreboard: reading list.ini, installing what they need, building and preparing them."""

import configparser
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BENCHES = Path(__file__).resolve().parent.parent
SOURCES, ROOT = BENCHES / "programs", BENCHES.parent
# Names under which Python imports packages that are called otherwise.
MODULES = {"scikit-learn": "sklearn", "biopython": "Bio"}
PREPARE_LIMIT = 300


@dataclass
class Program:
    """One section of list.ini."""

    name: str
    what: str
    command: list
    client: list
    prepare: str
    needs: list
    packages: list
    sources: list
    workloads: list
    local: str  # the only local memory that it is run with, or ""
    work: Path


@dataclass
class Places:
    """Folders and the interpreter that the lines of list.ini name."""

    work: Path
    bin: Path
    workloads: Path
    python: Path

    def values(self, work, size):
        user = pwd.getpwuid(os.geteuid()).pw_name
        return {
            "work": work, "bin": self.bin, "workloads": self.workloads, "python": self.python, "src": SOURCES,
            "size": size, "user": user,
        }


def read_list(places, quick, only):
    """Returns the programs called `only`, or all if it is empty. Ends with a line if a name is unknown."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.read(SOURCES / "list.ini", encoding="utf-8")
    unknown = [name for name in only if name not in parser]
    if unknown:
        sys.exit(f"no such program: {', '.join(unknown)}; there are {', '.join(parser.sections())}")
    return [make_program(parser[name], places, quick) for name in parser.sections() if not only or name in only]


def make_program(section, places, quick):
    work = places.work / section.name
    values = places.values(work, section["quick" if quick else "size"])
    # Braces that are no names of values stay as they are: shell lines have some.
    fill = lambda text, form: replace(text, {key: form(str(value)) for key, value in values.items()})
    words = lambda key: [fill(word, str) for word in shlex.split(section.get(key, ""))]
    return Program(
        section.name, section["what"], words("command"), words("client"),
        fill(section.get("prepare", ""), shlex.quote), words("need"), words("pip"), words("sources"),
        words("workloads"), section.get("local", ""), work,
    )


def replace(text, values):
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def interpreter(target):
    """Returns the Python of the environment below `target`, which is made if there is none, or this one."""
    python = target / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", target / "venv"], stdout=subprocess.DEVNULL, check=False)
    return python.absolute() if python.exists() else Path(sys.executable)


def environment(work):
    """Returns the environment of a program. Nothing of Hanare's or of the dynamic linker's is taken over."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HANARE_", "LD_"))}
    return {**kept, "LC_ALL": "C", "TMPDIR": str(work), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def make_ready(program, places):
    """Installs, builds and prepares what a program needs. Returns what is missing, or None."""
    shutil.rmtree(program.work, ignore_errors=True)
    program.work.mkdir(parents=True)
    trouble = install(program, places) or build(program, places)
    if trouble or not program.prepare:
        return trouble
    return quiet(["sh", "-ec", program.prepare], "its input cannot be made", cwd=program.work)


def install(program, places):
    if program.needs:
        # `need` says itself what is missing.
        if subprocess.run([ROOT / "scripts/need", *program.needs], check=False).returncode:
            return f"{' '.join(program.needs)} cannot be installed"
    missing = [package for package in program.packages if not has_package(places.python, package)]
    if missing:
        print(f"{program.name}: installing {' '.join(missing)}", file=sys.stderr)
        quiet([places.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *missing], "pip")
    missing = [package for package in missing if not has_package(places.python, package)]
    return f"no {', '.join(missing)} for {places.python}" if missing else None


def has_package(python, package):
    return quiet([python, "-c", f"import {MODULES.get(package, package)}"], "import") is None


def build(program, places):
    places.bin.mkdir(parents=True, exist_ok=True)
    for source in program.sources:
        out = places.bin / Path(source).stem
        compiler = ["c++", "-std=c++17"] if source.endswith(".cpp") else [os.environ.get("CC", "cc"), "-std=c11"]
        line = [*compiler, "-O2", "-Wall", "-Wextra", "-o", out, SOURCES / source, "-lm", "-pthread"]
        trouble = quiet(line, f"{source} cannot be compiled")
        if trouble:
            return trouble
    for name in program.workloads:
        make = ["make", "-s", "-C", ROOT / "workloads", f"OUT={places.workloads}", places.workloads / name]
        trouble = quiet(make, f"workloads/{name} cannot be built")
        if trouble:
            return trouble
    return None


def quiet(command, trouble, cwd=None):
    """Runs a command without its output. Returns None, or `trouble` and the last line that the command wrote."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=PREPARE_LIMIT, check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{trouble}: {error}"
    last = (done.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]
    return f"{trouble}: {last}" if done.returncode else None
