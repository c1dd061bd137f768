//! Shadow control verbs: a separate thread repeats on the second device what the program creates on
//! its own device, in the same order.

use core::ptr::null_mut;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use bowline_failover::Rail;
use bowline_io::spawn_background;
use bowline_verbs_types::{ibv_cq, ibv_mr, ibv_pd, ibv_qp_cap, ibv_qp_init_attr};

use crate::cq::Cq;
use crate::qp::Qp;
use crate::session::{Session, ShadowMr};

type Job = Box<dyn FnOnce(&Arc<Session>) + Send>;

/// The queue of jobs for the thread.
#[derive(Default)]
pub(crate) struct Shadow {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A pointer that a job carries. Verbs objects may be used from any thread, and destroying one
/// waits for all earlier jobs.
struct Carried<T>(*mut T);

// SAFETY: as above.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

impl Shadow {
    pub(crate) fn start(&self, session: &Arc<Session>) -> io::Result<()> {
        let (jobs, to_do) = channel();
        let session = Arc::downgrade(session);
        let thread = spawn_background("bowline-shadow", move || work(&session, &to_do))?;
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = Some(jobs);
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    pub(crate) fn order(&self, job: impl FnOnce(&Arc<Session>) + Send + 'static) {
        if let Some(jobs) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            // Once the thread has ended, there are no counterparts to create.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Waits until all earlier jobs are done.
    pub(crate) fn flush(&self) {
        let (done, wait) = channel();
        self.order(move |_| _ = done.send(()));
        // If the thread has ended, the other end is dropped.
        let _ = wait.recv();
    }

    pub(crate) fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic has ended the thread too.
            let _ = thread.join();
        }
    }
}

fn work(session: &Weak<Session>, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let Some(session) = session.upgrade() else { return };
        job(&session);
    }
}

fn last_error() -> io::Error {
    io::Error::last_os_error()
}

impl Session {
    /// The program has created a domain.
    pub(crate) fn shadow_pd(&self, pd: *mut ibv_pd) {
        let pd = Carried(pd);
        self.shadow.order(move |session| {
            // SAFETY: an open context.
            let backup = unsafe { (session.library.ibv_alloc_pd)(session.contexts[1].raw()) };
            if backup.is_null() {
                let why = last_error();
                return session.log.warn(&format!(
                    "failover: cannot allocate a protection domain on the backup: {why}"
                ));
            }
            let mut pds = session.pds.lock().unwrap_or_else(PoisonError::into_inner);
            pds.insert(pd.get() as usize, backup);
        });
    }

    /// The program frees a domain.
    pub(crate) fn end_pd(&self, pd: *mut ibv_pd) {
        self.shadow.flush();
        let backup = self.pds.lock().unwrap_or_else(PoisonError::into_inner).remove(&(pd as usize));
        if let Some(backup) = backup {
            // SAFETY: created here, and freed once. If it is in use, it stays.
            let _ = unsafe { (self.library.ibv_dealloc_pd)(backup) };
        }
    }

    fn backup_pd(&self, pd: *mut ibv_pd) -> Option<*mut ibv_pd> {
        self.pds.lock().unwrap_or_else(PoisonError::into_inner).get(&(pd as usize)).copied()
    }

    /// The program has registered memory.
    pub(crate) fn shadow_mr(&self, mr: *mut ibv_mr, iova: u64, access: u32) {
        // SAFETY: a region that was just registered.
        let (pd, addr, length, lkey, rkey) =
            unsafe { ((*mr).pd, (*mr).addr, (*mr).length, (*mr).lkey, (*mr).rkey) };
        let (mr, pd, addr) = (Carried(mr), Carried(pd), Carried(addr));
        self.shadow.order(move |session| {
            let Some(pd) = session.backup_pd(pd.get()) else { return };
            let register = session.library.ibv_reg_mr_iova2;
            // SAFETY: the memory is the program's, which keeps it until it deregisters it; that
            // waits for this.
            let backup = unsafe { register(pd, addr.get(), length, iova, access) };
            // SAFETY: null, or a region that was just registered.
            let Some(made) = (unsafe { backup.as_ref() }) else {
                let why = last_error();
                return session
                    .log
                    .warn(&format!("failover: cannot register memory on the backup: {why}"));
            };
            let key = session.region_made(lkey, rkey, made);
            let mut mrs = session.mrs.lock().unwrap_or_else(PoisonError::into_inner);
            mrs.insert(mr.get() as usize, ShadowMr { raw: backup, lkey, access, key });
        });
    }

    /// The program deregisters memory. Returns the access rights of the counterpart, if there was
    /// one.
    pub(crate) fn end_mr(&self, mr: *mut ibv_mr) -> Option<u32> {
        self.shadow.flush();
        let ended = self.mrs.lock().unwrap_or_else(PoisonError::into_inner).remove(&(mr as usize));
        let ShadowMr { raw, lkey, access, key } = ended?;
        self.region_gone(lkey, key);
        // SAFETY: registered here, and deregistered once.
        let _ = unsafe { (self.library.ibv_dereg_mr)(raw) };
        Some(access)
    }

    /// The program has created a completion queue.
    pub(crate) fn shadow_cq(&self, cq: Arc<Cq>, depth: i32) {
        self.shadow.order(move |session| {
            let create = session.library.ibv_create_cq;
            let context = session.contexts[1].raw();
            // SAFETY: an open context.
            let made = unsafe { create(context, depth, null_mut(), null_mut(), 0) };
            if made.is_null() {
                let why = last_error();
                return session.log.warn(&format!(
                    "failover: cannot create a completion queue on the backup: {why}"
                ));
            }
            cq.set_backup(made);
        });
    }

    /// The program has resized a completion queue.
    pub(crate) fn resize_shadow_cq(&self, cq: Arc<Cq>, depth: i32) {
        self.shadow.order(move |session| {
            let backup = cq.backup();
            if backup.is_null() {
                return;
            }
            // SAFETY: created here; destroying it waits for this job.
            let code = unsafe { (session.library.ibv_resize_cq)(backup, depth) };
            if code != 0 {
                let why = io::Error::from_raw_os_error(code);
                session.log.warn(&format!(
                    "failover: cannot resize a completion queue on the backup: {why}"
                ));
            }
        });
    }

    /// The program destroys a completion queue.
    pub(crate) fn end_cq(&self, cq: &Cq) {
        self.shadow.flush();
        let backup: *mut ibv_cq = cq.backup();
        cq.set_backup(null_mut());
        if !backup.is_null() {
            // SAFETY: created here, and destroyed once; nothing polls a queue that is being
            // destroyed.
            let _ = unsafe { (self.library.ibv_destroy_cq)(backup) };
        }
    }

    /// The program has created a queue pair.
    pub(crate) fn shadow_qp(
        &self,
        qp: Arc<Qp>,
        pd: *mut ibv_pd,
        cap: ibv_qp_cap,
        (qp_type, sq_sig_all): (u32, i32),
    ) {
        let pd = Carried(pd);
        self.shadow.order(move |session| {
            let Some(pd) = session.backup_pd(pd.get()) else { return };
            let (send_cq, recv_cq) = (qp.send_cq.backup(), qp.recv_cq.backup());
            if send_cq.is_null() || recv_cq.is_null() {
                return;
            }
            let (qp_context, srq) = (null_mut(), null_mut());
            let mut init =
                ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
            // SAFETY: domain and queues are alive, and the attributes outlive the call.
            let made = unsafe { (session.library.ibv_create_qp)(pd, &raw mut init) };
            if made.is_null() {
                let why = last_error();
                return session
                    .log
                    .warn(&format!("failover: cannot create a queue pair on the backup: {why}"));
            }
            qp.set_spare(made);
            session.add_qp(Rail::Backup, &qp);
        });
    }

    /// The program destroys a queue pair.
    pub(crate) fn end_qp(&self, qp: &Qp) {
        self.shadow.flush();
        self.end(qp);
        self.remove_qp(qp);
        qp.send_cq.leave(qp);
        qp.recv_cq.leave(qp);
        let spare = qp.raw(Rail::Backup);
        qp.set_spare(null_mut());
        if !spare.is_null() {
            // SAFETY: created here, and destroyed once; it is no longer in any table.
            let _ = unsafe { (self.library.ibv_destroy_qp)(spare) };
        }
    }
}
