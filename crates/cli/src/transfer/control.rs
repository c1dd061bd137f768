//! The conversation beside the data, and everything else that can happen to an end.

use std::cell::Cell;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bowline::{Channel, ReliableEvent};

use super::Failure;
use super::message::Message;
use crate::interrupt;

/// An end that has nothing to say says so this often.
const ALIVE_EVERY: Duration = Duration::from_secs(2);
/// A peer that says nothing for so long is gone. Mostly the system knows earlier.
const SILENCE: Duration = Duration::from_secs(60);
/// How often the user's wish to end is looked for.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What the peer has said and may wait to be handled, and what may wait to be sent: a peer cannot
/// fill the memory.
const QUEUE: usize = 256;

/// What an end's main thread hears of.
pub(super) enum Event<P = Message> {
    /// The peer has said something.
    Peer(P),
    /// A message of the queue pair is over, or the queue pair is.
    Queue(Result<ReliableEvent, bowline::Error>),
    /// A thread is through with a segment.
    Segment(Result<Handled, Failure>),
}

/// What the peer has said as it came, since a message may take more memory when it is decoded; or
/// the peer is gone.
pub(super) type Heard = Result<Vec<u8>, bowline::Error>;

/// What a thread did with a segment.
pub(super) struct Handled {
    pub(super) segment: u32,
    /// The buffer that holds it.
    pub(super) slot: usize,
    /// Its bytes, read at the sender, checked and written at the receiver; or, if some of it is
    /// wrong, the blocks that are right.
    pub(super) outcome: Result<usize, Vec<u32>>,
}

/// The user has ended it; the peer is told, and how to go on.
#[derive(Debug)]
pub(super) struct Interrupted(&'static str);

impl Interrupted {
    /// Of a sender that has several conversations.
    pub(super) fn by_the_senders_user() -> Interrupted {
        Interrupted("receiver")
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            "receiver" => {
                "interrupted by the sender's user; what has arrived is kept, and the same `bowline \
                 send` goes on with it"
            }
            _ => {
                "interrupted by the receiver's user; what has arrived is kept: start `bowline recv` \
                 again, and the same `bowline send` goes on with it"
            }
        })
    }
}

impl std::error::Error for Interrupted {}

/// One end of the conversation.
pub(super) struct Control {
    /// Who the peer is, for errors.
    peer: &'static str,
    outgoing: SyncSender<Message>,
    writer: JoinHandle<()>,
    events: Receiver<Event<Heard>>,
    event_sender: Sender<Event<Heard>>,
    /// A token for each of the peer's messages that has not been handled. Events of this end's own
    /// threads need none: each has a slot, so there are few, and a thread that waited for the main
    /// thread while that waits for it would wait for ever.
    unhandled: Receiver<()>,
    /// How long the peer may make no progress, and since when it has made none.
    patience: Option<Duration>,
    progress: Cell<Instant>,
}

impl Control {
    /// Takes the conversation over from its set-up. A peer that says it is alive and nothing else
    /// is given up after `patience`.
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
        // It ends with the connection, or when nobody listens to it any more.
        thread::spawn(move || listen(reading, &heard, &token));
        let (outgoing, to_send) = mpsc::sync_channel(QUEUE);
        let writer = thread::spawn(move || talk(channel, &to_send));
        let progress = Cell::new(Instant::now());
        Ok(Control { peer, outgoing, writer, events, event_sender, unhandled, patience, progress })
    }

    /// Says something to the peer. If it is gone, the next event says so.
    pub(super) fn send(&self, message: Message) {
        let _ = self.outgoing.send(message);
    }

    /// For threads that say something themselves.
    pub(super) fn sender(&self) -> SyncSender<Message> {
        self.outgoing.clone()
    }

    /// For threads that make events.
    pub(super) fn event_sender(&self) -> Sender<Event<Heard>> {
        self.event_sender.clone()
    }

    /// The peer has done something that brings the transfer nearer to its end, or was not asked for
    /// anything until now.
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
                // However many events there are: those of a peer that makes no progress gain no
                // time.
                let left = patience.checked_sub(self.progress.get().elapsed());
                wait = wait.min(left.ok_or_else(|| self.stuck(patience))?);
            }
            // This end holds a sender itself, so there is always one.
            if let Ok(event) = self.events.recv_timeout(wait) {
                return Ok(event);
            }
        }
    }

    /// What the peer says next, while nothing else can happen.
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
        format!("the {peer} has made no progress for {seconds} s, and is given up").into()
    }

    /// An error for what should not have been said now.
    pub(super) fn unexpected(&self) -> Failure {
        format!("the {} does not keep to the protocol: run the same release", self.peer).into()
    }

    fn lost(&self, e: &bowline::Error) -> Failure {
        format!(
            "the {} is gone: {e}; what has arrived is kept, and sending the same again goes on \
             with it",
            self.peer
        )
        .into()
    }

    /// Sends what is left to say, and why this end gives up if it does.
    pub(super) fn close(self, outcome: &Result<impl Sized, Failure>) {
        if let Err(e) = outcome {
            self.send(Message::Abort(e.to_string()));
        }
        drop((self.outgoing, self.events, self.unhandled));
        // A thread that panicked has said so itself.
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
        // A message is built to fit, and the listening thread reports a peer that is gone.
        let Ok(bytes) = postcard::to_stdvec(&message) else { return };
        if channel.send(&bytes).is_err() {
            return;
        }
    }
}
