//! `bowline completions` and `bowline man`: shell completions and manual pages.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::command;

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline completions bash > ~/.local/share/bash-completion/completions/bowline\n  \
    bowline completions zsh > ~/.zfunc/_bowline\n  \
    bowline completions fish > ~/.config/fish/completions/bowline.fish")]
pub(crate) struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

/// Write manual pages
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline man ~/.local/share/man/man1          then `man bowline-send`")]
pub(crate) struct ManArgs {
    /// Directory to write to: bowline.1, bowline-send.1 and so on
    dir: PathBuf,
}

/// Prints completions to stdout.
pub(crate) fn print(args: &CompletionsArgs) -> Result<(), Box<dyn Error>> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "bowline", &mut text);
    io::copy(&mut &text[..], &mut io::stdout())?;
    Ok(())
}

/// Writes a page for the program, and one for each command.
pub(crate) fn write_pages(args: &ManArgs) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(&args.dir)
        .map_err(|e| format!("cannot make {}: {e}", args.dir.display()))?;
    let program = command();
    for (name, text) in pages(&program)? {
        let path = args.dir.join(name);
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

/// File names and contents: a page for the program, and one for each command, at any depth.
fn pages(program: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    add_pages(program, "bowline", &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    pages.push(page(command.clone(), name)?);
    let below = command.get_subcommands().filter(|command| command.get_name() != "help");
    for command in below {
        add_pages(command, &format!("{name}-{}", command.get_name()), pages)?;
    }
    Ok(())
}

fn page(command: Command, name: &str) -> io::Result<(String, Vec<u8>)> {
    let mut text = Vec::new();
    let command = command.display_name(name.to_owned()).version(env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).title(name.to_owned()).render(&mut text)?;
    Ok((format!("{name}.1"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_its_options() {
        let pages = pages(&command()).unwrap();
        let text = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name).unwrap();
            String::from_utf8(page.1.clone()).unwrap()
        };
        assert!(text("bowline.1").contains("send"));
        assert!(text("bowline-send.1").contains("bwlimit"));
        assert!(text("bowline-sim-storm.1").contains("seeds"));
        assert!(text("bowline-top.1").contains("prometheus"));
        assert!(pages.len() > command().get_subcommands().count() + 1);
    }

    #[test]
    fn every_shell_gets_its_completions() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command(), "bowline", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("send") && text.contains("bwlimit"), "{shell}");
        }
    }
}
