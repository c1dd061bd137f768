//! The control connection next to the data, and all other events of an end.

use std::cell::Cell;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bowline::{Channel, ReliableEvent};

use super::Failure;
use super::message::Message;
use crate::interrupt;

/// Interval of keep-alive messages while there is nothing else to send.
const ALIVE_EVERY: Duration = Duration::from_secs(2);
/// A peer that is silent for this long is gone. The system usually notices earlier.
const SILENCE: Duration = Duration::from_secs(60);
/// How often to check whether the user has interrupted the program.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Messages from the peer that may wait to be handled, and messages that may wait to be sent. The
/// limit keeps a peer from filling the memory.
const QUEUE: usize = 256;

/// The events that an end's main thread receives.
pub(super) enum Event<P = Message> {
    /// A message from the peer.
    Peer(P),
    /// A message of the queue pair has finished, or the queue pair has failed.
    Queue(Result<ReliableEvent, bowline::Error>),
    /// A thread has finished with a segment.
    Segment(Result<Handled, Failure>),
}

/// An undecoded message from the peer, because decoding may take more memory; or an error if the
/// peer is gone.
pub(super) type Heard = Result<Vec<u8>, bowline::Error>;

/// What a thread did with a segment.
pub(super) struct Handled {
    pub(super) segment: u32,
    /// The slot of the buffer that holds the segment.
    pub(super) slot: usize,
    /// The bytes that were read at the sender, or checked and written at the receiver. If a part of
    /// the segment is wrong, the blocks that are right.
    pub(super) outcome: Result<usize, Vec<u32>>,
}

/// The user interrupted the transfer. The peer is told, and the message says how to resume.
#[derive(Debug)]
pub(super) struct Interrupted(&'static str);

impl Interrupted {
    /// For a sender with several control connections.
    pub(super) fn by_the_senders_user() -> Interrupted {
        Interrupted("receiver")
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            "receiver" => {
                "interrupted by the sender's user; run the same `bowline send` again to resume"
            }
            _ => {
                "interrupted by the receiver's user; start `bowline recv` and the same `bowline \
                 send` again to resume"
            }
        })
    }
}

impl std::error::Error for Interrupted {}

/// One end of the control connection.
pub(super) struct Control {
    /// What the peer is called in errors.
    peer: &'static str,
    outgoing: SyncSender<Message>,
    writer: JoinHandle<()>,
    events: Receiver<Event<Heard>>,
    event_sender: Sender<Event<Heard>>,
    /// A token for each unhandled message from the peer. Events of this end's own threads need
    /// none. There are few of them, because each has a slot; and a thread that waits for the main
    /// thread while the main thread waits for it would deadlock.
    unhandled: Receiver<()>,
    /// How long the peer may make no progress. The next field says when it last made some.
    patience: Option<Duration>,
    progress: Cell<Instant>,
}

impl Control {
    /// Takes over the channel after set-up. A peer that sends nothing but keep-alives is given up
    /// after `patience`.
    pub(super) fn start(
        mut channel: Channel,
        peer: &'static str,
        patience: Option<Duration>,
    ) -> Result<Control, Failure> {
        channel.set_timeout(SILENCE);
        let reading = channel.try_clone()?;
        let (event_sender, events) = mpsc::channel();
        let (token, unhandled) = mpsc::sync_channel(QUEUE);
        let heard = event_sender.clone();
        // This thread ends with the connection, or when nobody receives its events any more.
        thread::spawn(move || listen(reading, &heard, &token));
        let (outgoing, to_send) = mpsc::sync_channel(QUEUE);
        let writer = thread::spawn(move || talk(channel, &to_send));
        let progress = Cell::new(Instant::now());
        Ok(Control { peer, outgoing, writer, events, event_sender, unhandled, patience, progress })
    }

    /// Sends a message to the peer. If the peer is gone, the next event reports it.
    pub(super) fn send(&self, message: Message) {
        let _ = self.outgoing.send(message);
    }

    /// For threads that send messages themselves.
    pub(super) fn sender(&self) -> SyncSender<Message> {
        self.outgoing.clone()
    }

    /// For threads that produce events.
    pub(super) fn event_sender(&self) -> Sender<Event<Heard>> {
        self.event_sender.clone()
    }

    /// Records that the peer has brought the transfer closer to its end, or that nothing was
    /// expected of it until now.
    pub(super) fn note_progress(&self) {
        self.progress.set(Instant::now());
    }

    /// The next event.
    pub(super) fn next(&self) -> Result<Event, Failure> {
        let event = self.next_event()?;
        let heard = match event {
            Event::Peer(heard) => heard,
            Event::Queue(event) => return Ok(Event::Queue(event)),
            Event::Segment(handled) => return Ok(Event::Segment(handled)),
        };
        let _ = self.unhandled.try_recv();
        let bytes = heard.map_err(|e| self.lost(&e))?;
        match postcard::from_bytes(&bytes) {
            Ok(Message::Abort(why)) => Err(format!("the {} gave up: {why}", self.peer).into()),
            Ok(message) => Ok(Event::Peer(message)),
            Err(_) => Err(self.unexpected()),
        }
    }

    fn next_event(&self) -> Result<Event<Heard>, Failure> {
        loop {
            if interrupt::asked().is_some() {
                return Err(Box::new(Interrupted(self.peer)));
            }
            let mut wait = LOOK_EVERY;
            if let Some(patience) = self.patience {
                // Check this however many events there are: a peer that makes no progress gains no
                // time by sending events.
                let left = patience.checked_sub(self.progress.get().elapsed());
                wait = wait.min(left.ok_or_else(|| self.stuck(patience))?);
            }
            // This end holds a sender itself, so the channel never closes.
            if let Ok(event) = self.events.recv_timeout(wait) {
                return Ok(event);
            }
        }
    }

    /// The next message from the peer, while no other event is possible.
    pub(super) fn hear(&self) -> Result<Message, Failure> {
        loop {
            match self.next()? {
                Event::Peer(Message::Alive) => {}
                Event::Peer(message) => return Ok(message),
                Event::Queue(Err(e)) => return Err(e.into()),
                Event::Segment(Err(e)) => return Err(e),
                Event::Queue(Ok(_)) | Event::Segment(Ok(_)) => {}
            }
        }
    }

    fn stuck(&self, patience: Duration) -> Failure {
        let (peer, seconds) = (self.peer, patience.as_secs_f64());
        format!("the {peer} has made no progress for {seconds} s; giving up").into()
    }

    /// The error for a message that is not allowed now.
    pub(super) fn unexpected(&self) -> Failure {
        format!("protocol error from the {}: run the same release at both ends", self.peer).into()
    }

    fn lost(&self, e: &bowline::Error) -> Failure {
        format!(
            "lost the connection to the {}: {e}; run the same `bowline send` again to resume",
            self.peer
        )
        .into()
    }

    /// Sends the remaining messages and, if this end gives up, the reason.
    pub(super) fn close(self, outcome: &Result<impl Sized, Failure>) {
        if let Err(e) = outcome {
            self.send(Message::Abort(e.to_string()));
        }
        drop((self.outgoing, self.events, self.unhandled));
        // A thread that panicked has already reported it.
        let _ = self.writer.join();
    }
}

fn listen(mut channel: Channel, events: &Sender<Event<Heard>>, token: &SyncSender<()>) {
    loop {
        let heard = channel.recv();
        let is_last = heard.is_err();
        if token.send(()).is_err() || events.send(Event::Peer(heard)).is_err() || is_last {
            return;
        }
    }
}

fn talk(mut channel: Channel, messages: &Receiver<Message>) {
    loop {
        let message = match messages.recv_timeout(ALIVE_EVERY) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => Message::Alive,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Messages are built to fit, and the listening thread reports a peer that is gone.
        let Ok(bytes) = postcard::to_stdvec(&message) else { return };
        if channel.send(&bytes).is_err() {
            return;
        }
    }
}
