//! Shell completions, generated from the flag table.

use ferry_kube_proxy::cli::Flag;

use crate::values::{self, Values};

/// First line of every script, behind the shell's comment sign.
const ORIGIN: &str = "Completion of kube-proxy's flags; generated from its flag table.";

/// The script for bash, to be installed as `kube-proxy` in bash-completion's folder, or to be sourced.
pub fn bash() -> String {
    let mut cases = String::new();
    for flag in values::current() {
        let action = match values::of(flag) {
            Values::None => continue,
            Values::Free => "COMPREPLY=(); return".to_owned(),
            Values::File => {
                "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return".into()
            }
            Values::Directory => {
                "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); return".into()
            }
            Values::OneOf(list) => {
                format!("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$cur\"); return", list.join(" "))
            }
        };
        cases.push_str(&format!("    {}) {action} ;;\n", spellings(flag).join(" | ")));
    }
    let all: Vec<String> = values::current().flat_map(spellings).chain(["-h".into(), "--help".into()]).collect();
    format!(
        "# {ORIGIN}
_kube_proxy() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD - 1]}}
  # readline splits --flag=value into three words
  if [[ $cur == = ]]; then
    cur=
  elif [[ $flag == = ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  case $flag in
{cases}  esac
  mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$cur\")
}}
complete -F _kube_proxy kube-proxy
",
        all.join(" ")
    )
}

/// The script for zsh, to be installed as `_kube-proxy` in a folder of `fpath`.
pub fn zsh() -> String {
    let mut text = format!("#compdef kube-proxy\n# {ORIGIN}\n_arguments -s \\\n");
    for flag in values::current() {
        let help = zsh_text(flag.help);
        for spelling in spellings(flag) {
            // `=` admits `--name=value` and `--name value`; -v takes its value also without a blank
            let sign = if spelling.starts_with("--") { "=" } else { "+" };
            let spec = match values::of(flag) {
                Values::None => format!("{spelling}[{help}]"),
                values => {
                    format!("{spelling}{sign}[{help}]:{}:{}", flag.kind.word().replace(':', ""), zsh_action(values))
                }
            };
            text.push_str(&format!("  '{spec}' \\\n"));
        }
    }
    text + "  '(-h --help)'{-h,--help}'[Print the usage and exit.]'\n"
}

fn zsh_action(values: Values) -> String {
    match values {
        Values::None | Values::Free => " ".into(),
        Values::File => "_files".into(),
        Values::Directory => "_files -/".into(),
        Values::OneOf(list) => format!("({})", list.join(" ")),
    }
}

/// A help text within brackets and single quotes.
fn zsh_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace('\'', "'\\''")
}

/// The script for fish, to be installed as `kube-proxy.fish` in its folder of completions.
pub fn fish() -> String {
    let mut text = format!("# {ORIGIN}\ncomplete -c kube-proxy -f\n");
    for flag in values::current() {
        let name = if flag.name.len() == 1 { format!("-s {0} -l {0}", flag.name) } else { format!("-l {}", flag.name) };
        let rest = match values::of(flag) {
            Values::None => String::new(),
            Values::Free => " -x".into(),
            Values::File => " -r -F".into(),
            Values::Directory => " -x -a '(__fish_complete_directories)'".into(),
            Values::OneOf(list) => format!(" -x -a '{}'", list.join(" ")),
        };
        let help = flag.help.replace('\\', "\\\\").replace('\'', "\\'");
        text.push_str(&format!("complete -c kube-proxy {name} -d '{help}'{rest}\n"));
    }
    text + "complete -c kube-proxy -s h -l help -d 'Print the usage and exit.'\n"
}

/// How a flag is written: of one letter, also with a single dash.
fn spellings(flag: &Flag) -> Vec<String> {
    let long = format!("--{}", flag.name);
    if flag.name.len() == 1 { vec![format!("-{}", flag.name), long] } else { vec![long] }
}
