//! Checks the Debian packages that `make deb` makes: their files, modes and fields, the service, and that the command
//! in them finds its library. They are made from what is built already, in the profile of this test.

use std::path::Path;

use hanare_tests::{Place, built, installed};

/// The files of the package `hanare`, apart from most documents and manual pages. LIB stands for the folder of the
/// architecture.
const FILES: [(&str, &str); 15] = [
    ("-rwxr-xr-x", "/usr/bin/hanare"),
    ("-rw-r--r--", "/usr/include/dlmm.h"),
    ("-rw-r--r--", "/usr/include/dsm.h"),
    ("-rwxr-xr-x", "/usr/lib/hanare/libhanare.so"),
    ("-rwxr-xr-x", "/usr/lib/hanare/libhanare_dsm.so"),
    ("-rwxr-xr-x", "/usr/lib/hanare/libhanare_preload.so"),
    ("-rw-r--r--", "/usr/lib/udev/rules.d/70-hanare.rules"),
    ("-rw-r--r--", "/usr/lib/LIB/pkgconfig/hanare-dsm.pc"),
    ("-rw-r--r--", "/usr/lib/LIB/pkgconfig/hanare.pc"),
    ("-rw-r--r--", "/usr/share/bash-completion/completions/hanare"),
    ("-rw-r--r--", "/usr/share/fish/vendor_completions.d/hanare.fish"),
    ("-rw-r--r--", "/usr/share/zsh/vendor-completions/_hanare"),
    ("-rw-r--r--", "/usr/share/doc/hanare/copyright"),
    ("-rw-r--r--", "/usr/share/doc/hanare/examples/far.c"),
    ("-rw-r--r--", "/usr/share/man/man1/hanare-run.1.gz"),
];

/// All files of the package `hanare-server`.
const SERVER_FILES: [(&str, &str); 5] = [
    ("-rw-r--r--", "/etc/default/hanare-server"),
    ("-rw-r--r--", "/usr/lib/systemd/system/hanare-server.service"),
    ("-rw-r--r--", "/usr/share/doc/hanare-server/README.Debian"),
    ("-rw-r--r--", "/usr/share/doc/hanare-server/changelog.Debian.gz"),
    ("-rw-r--r--", "/usr/share/doc/hanare-server/copyright"),
];

const SCRIPTS: [&str; 5] = [
    "hanare/DEBIAN/postinst",
    "hanare/DEBIAN/postrm",
    "hanare-server/DEBIAN/postinst",
    "hanare-server/DEBIAN/prerm",
    "hanare-server/DEBIAN/postrm",
];

/// Exposure by `systemd-analyze security`, in tenths, that the unit may have at most. It has 16.
const EXPOSURE_MAX: u32 = 20;

/// Runs a program that must succeed, and returns what it prints.
fn output(place: &Place, program: &str, args: &[&str]) -> String {
    let outcome = place.run(place.command(program).args(args));
    assert_eq!(outcome.code, Some(0), "{program} {args:?}: {}", outcome.stderr);
    String::from_utf8(outcome.stdout).expect("text")
}

/// Makes both packages, and unpacks them into the folders `hanare` and `hanare-server` of a new place.
fn packages() -> Place {
    let (place, built) = (Place::new(), built());
    let mut make = place.command("make");
    make.arg("-C").arg(&built.root).args(["deb", &format!("PROFILE={}", built.profile())]);
    make.arg(format!("DEBDIR={}", place.path("out").display())).env("CARGO_TARGET_DIR", &built.target);
    // These tests look at what is in the packages, so none is compressed.
    make.env("DPKG_DEB_COMPRESSOR_TYPE", "none").env("DEBEMAIL", "packages@debian.org").env_remove("DEBFULLNAME");
    let outcome = place.run(&mut make);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for name in ["hanare", "hanare-server"] {
        output(&place, "dpkg-deb", &["-R", &package(&place, name), &folder(&place, name)]);
    }
    place
}

/// Returns the path of the package with this name.
fn package(place: &Place, name: &str) -> String {
    let files =
        std::fs::read_dir(place.path("out")).expect("the packages").map(|entry| entry.expect("an entry").path());
    let is_it =
        |path: &Path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&format!("{name}_")));
    let mut found: Vec<_> = files.filter(|path| is_it(path)).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.remove(0).display().to_string()
}

fn folder(place: &Place, name: &str) -> String {
    place.path(name).display().to_string()
}

fn field(place: &Place, name: &str, field: &str) -> String {
    output(place, "dpkg-deb", &["-f", &package(place, name), field]).trim_end().to_owned()
}

/// Returns the mode and the path of each file in a package. Every file belongs to root.
fn files(place: &Place, name: &str) -> Vec<(String, String)> {
    let list = output(place, "dpkg-deb", &["-c", &package(place, name)]);
    let mut files = Vec::new();
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], "root/root", "{line}");
        assert!(words[0] != "drwxrwxr-x" && !words[0].contains('s'), "{line}");
        if words[0].starts_with('-') {
            files.push((words[0].to_owned(), words[5].trim_start_matches('.').to_owned()));
        }
    }
    files
}

/// One test, because the packages are made once, and their folder is removed at its end.
#[test]
fn the_packages_hold_what_they_should_and_work() {
    if installed("dpkg-deb", "dpkg") && installed("dpkg-shlibdeps", "dpkg-dev") {
        let place = packages();
        have_their_files(&place);
        have_their_fields(&place);
        have_a_command_that_finds_its_library(&place);
        have_scripts_and_a_unit(&place);
    }
}

fn have_their_files(place: &Place) {
    let multiarch = output(place, "dpkg-architecture", &["-qDEB_HOST_MULTIARCH"]);
    let found = files(place, "hanare");
    for (mode, path) in FILES {
        let path = path.replace("LIB", multiarch.trim_end());
        assert!(found.contains(&(mode.to_owned(), path.clone())), "{mode} {path} is not in {found:?}");
    }
    let is_other = |path: &str| !path.starts_with("/usr/share/doc/") && !path.starts_with("/usr/share/man/");
    assert_eq!(found.iter().filter(|(_, path)| is_other(path)).count(), FILES.len() - 3, "{found:?}");
    let server: Vec<(String, String)> = files(place, "hanare-server");
    assert_eq!(server, SERVER_FILES.map(|(mode, path)| (mode.to_owned(), path.to_owned())));
    have_no_dead_links(&place.path("hanare/usr/share/doc/hanare"));
    let pc = place.path("hanare/usr/lib").join(multiarch.trim_end()).join("pkgconfig/hanare.pc");
    let pc = std::fs::read_to_string(pc).expect("the pkg-config file");
    assert!(pc.contains("prefix=/usr\nlibdir=/usr/lib/hanare\nincludedir=/usr/include\n"), "{pc}");
}

/// Checks that the links of all documents in a folder lead to files of the package.
fn have_no_dead_links(folder: &Path) {
    let mut pages = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).expect("a page");
                let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
                for target in targets.filter(|target| !target.is_empty() && !target.contains(':')) {
                    assert!(folder.join(target).exists(), "{}: {target} is not in the package", path.display());
                }
                pages += 1;
            }
        }
    }
    assert!(pages > 40, "only {pages} pages");
}

fn have_their_fields(place: &Place) {
    let version = format!("{}-1", env!("CARGO_PKG_VERSION"));
    let architecture = output(place, "dpkg", &["--print-architecture"]);
    for (name, its) in [("hanare", architecture.trim_end()), ("hanare-server", "all")] {
        assert_eq!(
            (field(place, name, "Version"), field(place, name, "Architecture")),
            (version.clone(), its.to_owned())
        );
        assert_eq!(field(place, name, "Maintainer"), "Hanare maintainers <packages@debian.org>");
        assert!(field(place, name, "Installed-Size").parse::<u64>().is_ok_and(|kib| kib > 0));
        output(place, "sh", &["-c", &format!("cd {} && md5sum --quiet -c DEBIAN/md5sums", folder(place, name))]);
    }
    assert!(field(place, "hanare", "Depends").contains("libc6 (>= "), "{}", field(place, "hanare", "Depends"));
    assert!(field(place, "hanare-server", "Depends").starts_with(&format!("hanare (= {version})")));
    let conffiles = std::fs::read_to_string(place.path("hanare-server/DEBIAN/conffiles")).expect("the list");
    assert_eq!(conffiles, "/etc/default/hanare-server\n");
}

fn have_a_command_that_finds_its_library(place: &Place) {
    let hanare = place.path("hanare/usr/bin/hanare");
    let lines: String = (0..400_000_u64).map(|n| format!("{}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let file = place.file("lines", lines);
    let plain = place.run(place.command("sort").args(["-S", "40M"]).arg(&file));
    let mut run = place.command(hanare);
    let far = place.run(run.args(["run", "--local", "8M", "--", "sort", "-S", "40M"]).arg(&file));
    assert_eq!((plain.code, far.code), (Some(0), Some(0)), "{}", far.stderr);
    assert!(!plain.stdout.is_empty() && plain.stdout == far.stdout, "the sorted lines differ");
    place.assert_nothing_left();
}

fn have_scripts_and_a_unit(place: &Place) {
    let unit = std::fs::read_to_string(place.path("hanare-server/usr/lib/systemd/system/hanare-server.service"))
        .expect("the unit");
    for line in ["Type=notify", "DynamicUser=yes", "LoadCredential=key:/etc/hanare/server.key"] {
        assert!(unit.lines().any(|other| other == line), "{line} is not in {unit}");
    }
    assert!(unit.contains("\nExecStart=/usr/bin/hanare serve --key %d/key $HANARE_SERVER_OPTIONS\n"), "{unit}");
    let options = place.path("hanare-server/etc/default/hanare-server");
    let script = format!(". {} && printf %s \"${{HANARE_SERVER_OPTIONS-unset}}\"", options.display());
    assert_eq!(output(place, "sh", &["-c", &script]), "", "by default nothing but loopback");
    for script in SCRIPTS {
        output(place, "sh", &["-n", &place.path(script).display().to_string()]);
    }
    if !installed("systemd-analyze", "systemd") {
        return;
    }
    // It wants the programs of a unit to be where the unit says.
    let here = unit.replace("/usr/bin/hanare", &place.path("hanare/usr/bin/hanare").display().to_string());
    let file = place.file("hanare-server.service", here).display().to_string();
    let verified = place.run(place.command("systemd-analyze").args(["verify", "--man=no", &file]));
    // Other units of the machine may have faults of their own.
    assert!(verified.code == Some(0) && !verified.stderr.contains("hanare-server"), "{}", verified.stderr);
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    output(place, "systemd-analyze", &["security", "--offline=yes", &threshold, &file]);
}
