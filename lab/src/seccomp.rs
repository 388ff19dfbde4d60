//! Applies the seccomp profile of the variable `FERRY_SECCOMP` to the executable, as a container runtime does.
//!
//! A profile of the OCI has calls with an error number of their own beside the default one. A filter has one action for the calls
//! that it names and one for the others, so each such number gets a filter of its own that refuses its calls, and the main filter
//! admits them: of the filters of a process the strictest decides.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use seccompiler::{BpfProgram, TargetArch, apply_filter, compile_from_json};
use serde::Deserialize;
use serde_json::{Value, json};

/// The environment variable with the profile's path; without it, programs run without a profile.
const VARIABLE: &str = "FERRY_SECCOMP";
/// The action that admits a call.
const ALLOW: &str = "SCMP_ACT_ALLOW";
/// The action that refuses a call with an error.
const ERRNO: &str = "SCMP_ACT_ERRNO";

/// A compiled profile.
#[derive(Debug)]
pub struct SeccompProfile {
    filters: Vec<BpfProgram>,
}

/// The format of the OCI (`linux.seccomp` of its runtime specification), as far as a profile may use it here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    default_action: String,
    default_errno_ret: u32,
    /// the architectures that a runtime compiles it for
    #[serde(rename = "architectures")]
    _architectures: Vec<String>,
    syscalls: Vec<Calls>,
}

/// Calls with the same action.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Calls {
    /// why they are there, for readers
    #[serde(rename = "comment")]
    _comment: String,
    names: Vec<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Vec<Argument>,
}

/// A condition for an argument; all conditions of an entry have to hold.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u8,
    value: u64,
    value_two: Option<u64>,
    op: String,
}

// === impl SeccompProfile ===

impl SeccompProfile {
    /// The profile that the environment asks for, compiled once.
    ///
    /// # Panics
    /// If it can't be read or compiled.
    pub(crate) fn wanted() -> Option<&'static Self> {
        static PROFILE: OnceLock<Option<SeccompProfile>> = OnceLock::new();
        PROFILE.get_or_init(|| std::env::var_os(VARIABLE).map(|path| Self::read(&PathBuf::from(path)))).as_ref()
    }

    /// Reads and compiles a profile.
    ///
    /// # Panics
    /// If it can't be read or compiled, or names a call that this processor doesn't have.
    pub fn read(path: &Path) -> Self {
        let complain = |error: &dyn std::fmt::Display| -> ! { panic!("profile {}: {error}", path.display()) };
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| complain(&error));
        let document: Document = serde_json::from_str(&text).unwrap_or_else(|error| complain(&error));
        Self { filters: document.filters().unwrap_or_else(|error| complain(&error)) }
    }

    /// Subjects the calling thread, and all threads and programs that it will start, to the profile, and to `no_new_privs`.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn apply(&self) {
        for filter in &self.filters {
            apply_filter(filter).unwrap_or_else(|error| panic!("applying a seccomp filter: {error}"));
        }
    }
}

// === impl Document ===

impl Document {
    /// Filters, the main one last: it need not admit the call that applies filters.
    fn filters(&self) -> Result<Vec<BpfProgram>, String> {
        if self.default_action != ERRNO {
            return Err(format!("defaultAction {} is not {ERRNO}", self.default_action));
        }
        let (mut allowed, mut refused) = (Vec::new(), BTreeMap::<u32, Vec<Value>>::new());
        for calls in &self.syscalls {
            let rules = calls.rules()?;
            match (calls.action.as_str(), calls.errno_ret) {
                (ALLOW, None) => {}
                (ERRNO, Some(number)) => refused.entry(number).or_default().extend(rules.iter().cloned()),
                (action, number) => return Err(format!("action {action} with errnoRet {number:?}: {:?}", calls.names)),
            }
            allowed.extend(rules);
        }
        let refusals =
            refused.into_iter().map(|(number, rules)| compile(&json!("allow"), &json!({"errno": number}), rules));
        let main = compile(&json!({"errno": self.default_errno_ret}), &json!("allow"), allowed);
        refusals.chain([main]).collect()
    }
}

// === impl Calls ===

impl Calls {
    /// One rule for each name, as seccompiler reads it.
    fn rules(&self) -> Result<Vec<Value>, String> {
        let conditions = self.args.iter().map(Argument::condition).collect::<Result<Vec<_>, _>>()?;
        let rule = |name: &String| match conditions.is_empty() {
            true => json!({"syscall": name}),
            false => json!({"syscall": name, "args": conditions}),
        };
        Ok(self.names.iter().map(rule).collect())
    }
}

// === impl Argument ===

impl Argument {
    fn condition(&self) -> Result<Value, String> {
        let (op, value) = match (self.op.as_str(), self.value_two) {
            ("SCMP_CMP_EQ", None) => (json!("eq"), self.value),
            // the mask comes first, then what is left under it
            ("SCMP_CMP_MASKED_EQ", Some(left)) => (json!({"masked_eq": self.value}), left),
            (op, _) => return Err(format!("unknown op {op}")),
        };
        Ok(json!({"index": self.index, "type": "qword", "op": op, "val": value}))
    }
}

fn compile(others: &Value, named: &Value, rules: Vec<Value>) -> Result<BpfProgram, String> {
    const NAME: &str = "filter";
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let text = json!({NAME: {"mismatch_action": others, "match_action": named, "filter": rules}}).to_string();
    let compiled = compile_from_json(text.as_bytes(), architecture).map_err(|error| error.to_string());
    let mut filters: HashMap<_, _> = compiled?.into_iter().collect();
    filters.remove(NAME).ok_or_else(|| "no filter was compiled".to_owned())
}

#[cfg(test)]
mod tests;
