//! A terminal screen that is redrawn repeatedly.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Switches to the alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Other,
}

/// The terminal. Its previous state is restored on drop.
pub(super) struct Screen {
    /// The settings to restore, if keys can be read.
    before: Option<Termios>,
}

impl Screen {
    /// Takes over the terminal.
    pub(super) fn enter() -> io::Result<Screen> {
        let stdin = io::stdin();
        let before = if stdin.is_terminal() { tcgetattr(&stdin).ok() } else { None };
        if let Some(before) = &before {
            let mut now = before.clone();
            // Deliver each key at once and without echo. Ctrl-C keeps its meaning.
            now.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(&stdin, OptionalActions::Now, &now)?;
        }
        let screen = Screen { before };
        write_out(ENTER)?;
        Ok(screen)
    }

    /// Shows these lines, as far as they fit.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (width, height) = tcgetwinsize(io::stdout())
            .map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        write_out(&frame(lines, width.max(1), height.max(1)))
    }

    /// Waits for a key.
    pub(super) fn key(&mut self, timeout: Duration) -> io::Result<Option<Key>> {
        if self.before.is_none() {
            std::thread::sleep(timeout);
            return Ok(None);
        }
        let stdin = io::stdin();
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut pressed = [0; 16];
        Ok(match stdin.lock().read(&mut pressed)? {
            // The terminal is gone.
            0 => Some(Key::Quit),
            count if pressed[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => {
                Some(Key::Quit)
            }
            _ => Some(Key::Other),
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing left to restore.
        let _ = write_out(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A whole frame as one string, so that it never appears half-drawn.
fn frame(lines: &[String], width: usize, height: usize) -> String {
    let shown: Vec<String> = lines
        .iter()
        .take(height)
        .map(|line| line.chars().take(width).collect::<String>() + CLEAR_LINE)
        .collect();
    format!("{HOME}{}{CLEAR_BELOW}", shown.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_its_terminal() {
        let lines = ["abcdef", "gh", "ij"].map(str::to_owned);
        assert_eq!(frame(&lines, 4, 2), "\x1b[Habcd\x1b[K\r\ngh\x1b[K\x1b[J");
    }
}
