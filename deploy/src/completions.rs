//! Shell completions, generated from the flag table.

use ferry_kube_proxy::cli::{Flag, INSPECTIONS};

use crate::values::{self, Values};

/// First line of every script, behind the shell's comment sign.
const ORIGIN: &str = "Completion of kube-proxy's flags; generated from its flag table.";

/// The script for bash, to be installed as `kube-proxy` in bash-completion's folder, or to be sourced.
pub fn bash() -> String {
    let mut cases = String::new();
    for flag in values::current().chain(values::own()) {
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
    let own = INSPECTIONS.iter().map(|inspected| {
        let flags: Vec<String> = inspected.flags.iter().flat_map(spellings).collect();
        format!("    {}) words+=' {}' ;;\n", inspected.name, flags.join(" "))
    });
    let (own, names): (String, Vec<&str>) = (own.collect(), names().collect());
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
  local words='{}'
  case ${{COMP_WORDS[1]}} in
{own}  esac
  if (( COMP_CWORD == 1 )); then
    words+=' {}'
  fi
  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")
}}
complete -F _kube_proxy kube-proxy
",
        all.join(" "),
        names.join(" ")
    )
}

/// The script for zsh, to be installed as `_kube-proxy` in a folder of `fpath`.
pub fn zsh() -> String {
    let mut text = format!("#compdef kube-proxy\n# {ORIGIN}\nlocal -a own\ncase $words[2] in\n");
    for inspected in INSPECTIONS {
        let specs: Vec<String> = inspected.flags.iter().flat_map(zsh_specs).collect();
        text.push_str(&format!("  {}) own=({}) ;;\n", inspected.name, specs.join(" ")));
    }
    let names: Vec<&str> = names().collect();
    text.push_str(&format!("esac\n_arguments -s $own '1::subcommand:({})' \\\n", names.join(" ")));
    for spec in values::current().flat_map(zsh_specs) {
        text.push_str(&format!("  {spec} \\\n"));
    }
    text + "  '(-h --help)'{-h,--help}'[Print the usage and exit.]'\n"
}

/// The specification of each spelling of a flag.
fn zsh_specs(flag: &Flag) -> Vec<String> {
    let help = zsh_text(flag.help);
    let spec = |spelling: String| {
        // `=` admits `--name=value` and `--name value`; -v takes its value also without a blank
        let sign = if spelling.starts_with("--") { "=" } else { "+" };
        match values::of(flag) {
            Values::None => format!("'{spelling}[{help}]'"),
            values => {
                let word = flag.kind.word().replace(':', "");
                format!("'{spelling}{sign}[{help}]:{word}:{}'", zsh_action(values))
            }
        }
    };
    spellings(flag).into_iter().map(spec).collect()
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
        text.push_str(&format!("complete -c kube-proxy {}\n", fish_option(flag)));
    }
    for inspected in INSPECTIONS {
        let (name, about) = (inspected.name, fish_text(inspected.about));
        text.push_str(&format!("complete -c kube-proxy -n __fish_use_subcommand -a {name} -d '{about}'\n"));
        for flag in inspected.flags {
            let seen = format!("-n '__fish_seen_subcommand_from {name}'");
            text.push_str(&format!("complete -c kube-proxy {seen} {}\n", fish_option(flag)));
        }
    }
    text + "complete -c kube-proxy -s h -l help -d 'Print the usage and exit.'\n"
}

fn fish_option(flag: &Flag) -> String {
    let name = if flag.name.len() == 1 { format!("-s {0} -l {0}", flag.name) } else { format!("-l {}", flag.name) };
    let rest = match values::of(flag) {
        Values::None => String::new(),
        Values::Free => " -x".into(),
        Values::File => " -r -F".into(),
        Values::Directory => " -x -a '(__fish_complete_directories)'".into(),
        Values::OneOf(list) => format!(" -x -a '{}'", list.join(" ")),
    };
    format!("{name} -d '{}'{rest}", fish_text(flag.help))
}

fn fish_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

/// The names of all subcommands.
fn names() -> impl Iterator<Item = &'static str> {
    INSPECTIONS.iter().map(|inspected| inspected.name)
}

/// How a flag is written: of one letter, also with a single dash.
fn spellings(flag: &Flag) -> Vec<String> {
    let long = format!("--{}", flag.name);
    if flag.name.len() == 1 { vec![format!("-{}", flag.name), long] } else { vec![long] }
}
