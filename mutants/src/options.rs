//! The command line options.

use crate::scope;
use anyhow::{Result, bail, ensure};

/// The selected mutants: all of them without options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MutantOptions {
    /// only this package
    package: Option<String>,
    /// only files below `src` that match this glob
    pub(crate) file: Option<String>,
}

// === impl MutantOptions ===

impl MutantOptions {
    /// Parses the arguments.
    ///
    /// # Errors
    /// If one is unknown, has no value or is given twice, or names a package without mutants.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for pair in arguments.chunks(2) {
            let [option, value] = pair else { bail!("{} needs a value", pair.join(" ")) };
            let place = match option.as_str() {
                "--crate" => &mut options.package,
                "--file" => &mut options.file,
                other => bail!("unexpected argument {other}: there are --crate and --file"),
            };
            ensure!(place.replace(value.clone()).is_none(), "{option} is given twice");
        }
        if let Some(name) = options.package.take() {
            let full = if name.starts_with("ferry-") { name } else { format!("ferry-{name}") };
            ensure!(scope::is_mutated(&full), "no mutants are made in {full}");
            options.package = Some(full);
        }
        Ok(options)
    }

    /// True if mutants of this package are tried.
    pub(crate) fn wants(&self, package: &str) -> bool {
        self.package.as_ref().is_none_or(|wanted| wanted == package)
    }

    /// True if all mutants of a package are tried.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<MutantOptions> {
        MutantOptions::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_name_a_crate_and_a_file() {
        assert_eq!(parse("").unwrap(), MutantOptions::default());
        let options = parse("--crate model --file node.rs").unwrap();
        assert_eq!(options.file.as_deref(), Some("node.rs"));
        assert!(options.wants("ferry-model") && !options.wants("ferry-api") && !options.is_whole());
        let all = MutantOptions::default();
        assert!(all.wants("ferry-plane-nftables") && all.wants("ferry-api") && all.is_whole());
        for wrong in ["--crate", "--crate kernel", "--carte model", "--crate api --crate model"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
