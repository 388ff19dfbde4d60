//! Wraps a program of the tool in a script that fails on demand.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferry_kernel::iptables::Environment;
use ferry_lab::patience::{slowly, until};

use crate::machine::{Machine, inside};

/// A program of the machine's variant, wrapped in a script that can act before it.
pub(crate) struct Wrapper {
    folder: PathBuf,
    what: &'static str,
}

impl Wrapper {
    /// Wraps the program whose name ends with this.
    pub(crate) fn new(machine: &mut Machine, what: &'static str) -> Self {
        let folder = machine.folder().to_owned();
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let name = machine.program(what);
        let path = machine.environment.path.clone();
        let real = std::env::split_paths(&path).map(|folder| folder.join(&name)).find(|path| path.exists()).unwrap();
        let script = format!(
            "#!/bin/sh\nREAL={}\nFOLDER={}\ncase \"$*\" in *--verbose*) echo $$ >> $FOLDER/started{what};; esac\ntext() {{ sed '/^# [1-9][0-9]*$/q'; }}\ncase \"$1\" in --version|-V) ;; *) [ -f $FOLDER/fault{what} ] && . $FOLDER/fault{what};; esac\nexec $REAL \"$@\"\n",
            real.display(),
            folder.display()
        );
        // Not by this process: a child forked meanwhile would keep it open for writing, so that exec fails (ETXTBSY).
        let arguments = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
        let program = bin.join(&name);
        assert!(Command::new("sh").args(arguments).arg(&program).arg(&script).status().unwrap().success());
        let mut folders = vec![bin];
        folders.extend(std::env::split_paths(&path));
        machine.environment.path = std::env::join_paths(folders).unwrap();
        Self { folder, what }
    }

    /// The path of the wrapper.
    pub(crate) fn program(&self, machine: &Machine) -> PathBuf {
        self.folder.join("bin").join(machine.program(self.what))
    }

    /// Sets shell code that runs first from now on; `$REAL` is the program itself, and `text` reads one text, up to the comment behind it.
    pub(crate) fn fault(&self, script: &str) {
        fs::write(self.folder.join(format!("fault{}", self.what)), script).unwrap();
        self.end_idle();
    }

    /// Removes the shell code: the program runs as is.
    pub(crate) fn well(&self) {
        fs::remove_file(self.folder.join(format!("fault{}", self.what))).unwrap();
        self.end_idle();
    }

    /// Kills the processes that wait for another text (`Restorer`), so that the next one runs the script anew.
    pub(crate) fn end_idle(&self) {
        let started = self.folder.join(format!("started{}", self.what));
        let all = fs::read_to_string(&started).unwrap_or_default();
        for pid in all.lines().filter(|pid| is_own_child(pid)) {
            // Each has a process group of its own. It fails for one that has ended.
            Command::new("kill").args(["-9", "--", &format!("-{pid}")]).stderr(Stdio::null()).status().unwrap();
            until("it ends", slowly(Duration::from_secs(10)), || !is_own_child(pid));
        }
        let _ = fs::remove_file(started);
    }
}

/// True of a running child of this process: the number may be another process's by now.
fn is_own_child(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
    let mut fields = rest.split(' ');
    fields.next().is_some_and(|state| state != "Z") && fields.next() == Some(&std::process::id().to_string())
}

/// Runs a test in each variant and family, with the program whose name ends with this wrapped, and with this timeout of runs.
pub(crate) fn with_wrapper(what: &'static str, run_time: Duration, test: impl Fn(&Machine, &Wrapper) + Send + Sync) {
    inside(|machine| {
        let mut copy = Machine::new(machine.backend, machine.family);
        let environment = Environment { run_time, ..copy.environment.clone() };
        copy.environment = environment;
        let wrapper = Wrapper::new(&mut copy, what);
        test(&copy, &wrapper);
    });
}
