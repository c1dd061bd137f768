//! A plug-in as NCCL uses it: loaded by name, called through the table of one version.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use nccl_net_bowline::abi::{
    CommAttr, CommConfig, HANDLE_BYTES, NetAttr, NetV8, NetV9, NetV10, NetV11, PTR_HOST,
    PropertiesV8, PropertiesV9, PropertiesV11, REMOTE_ERROR, SUCCESS, Status,
};

/// The opaque pointers that NCCL passes around.
pub(crate) type Handle = *mut c_void;

enum Table {
    V8(&'static NetV8),
    V9(&'static NetV9),
    V10(&'static NetV10),
    V11(&'static NetV11),
}

/// A plug-in of one version, initialised.
pub(crate) struct Net {
    library: Handle,
    table: Table,
    context: Handle,
}

/// The properties of a device that all versions have.
#[derive(Clone, Debug)]
pub(crate) struct Properties {
    pub(crate) name: String,
    pub(crate) ptr_support: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) speed: c_int,
}

/// Prints the plug-in's log to standard error, if the same variable as for NCCL's log asks for it.
unsafe extern "C" fn logger(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    if std::env::var_os("NCCL_DEBUG").is_none() {
        return;
    }
    // SAFETY: the plug-in passes a format with one string, and that string.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format, c"%s");
    eprintln!("    [{level}] {}", text.to_string_lossy());
}

/// Calls a function of the loaded version. Arguments differ little between versions.
macro_rules! call {
    ($net:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: arguments are as in the headers; deliberately wrong ones are plain numbers.
        unsafe {
            match &$net.table {
                Table::V8(table) => (table.$function)($($argument),*),
                Table::V9(table) => (table.$function)($($argument),*),
                Table::V10(table) => (table.$function)($($argument),*),
                Table::V11(table) => (table.$function)($($argument),*),
            }
        }
    };
}

/// Turns an NCCL result code into a `Result`.
fn ok(status: Status) -> Result<(), Status> {
    if status == SUCCESS { Ok(()) } else { Err(status) }
}

/// The handle that a call has stored; null means "not yet".
fn some(status: Status, place: Handle) -> Result<Option<Handle>, Status> {
    ok(status).map(|()| (!place.is_null()).then_some(place))
}

impl Net {
    /// Loads and initialises the plug-in.
    pub(crate) fn load(path: &Path, version: u32) -> Result<Net, String> {
        let text = path.to_str().ok_or("the path of the plug-in is not UTF-8")?;
        let name = CString::new(text).map_err(|e| e.to_string())?;
        let symbol =
            CString::new(format!("ncclNetPlugin_v{version}")).map_err(|e| e.to_string())?;
        // SAFETY: both are C strings; the library is the plug-in, which stays loaded.
        let (library, table) = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                let why = CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned();
                return Err(format!("cannot load {text}: {why}"));
            }
            (library, libc::dlsym(library, symbol.as_ptr()))
        };
        if table.is_null() {
            return Err(format!("{text} has no version {version}"));
        }
        // SAFETY: the symbol is the table of that version, and stays valid.
        let table = unsafe {
            match version {
                8 => Table::V8(&*table.cast()),
                9 => Table::V9(&*table.cast()),
                10 => Table::V10(&*table.cast()),
                _ => Table::V11(&*table.cast()),
            }
        };
        let mut net = Net { library, table, context: null_mut() };
        ok(net.init()).map_err(|status| format!("init: {status}"))?;
        Ok(net)
    }

    fn init(&mut self) -> Status {
        // SAFETY: a logger that takes one argument more than it declares is called as if it
        // declared it.
        let logger = unsafe {
            Some(std::mem::transmute::<*const (), nccl_net_bowline::abi::Logger>(
                logger as *const (),
            ))
        };
        let config = CommConfig { traffic_class: 32 };
        // SAFETY: the arguments are as in the headers.
        unsafe {
            match &self.table {
                Table::V8(table) => (table.init)(logger),
                Table::V9(table) => (table.init)(logger),
                Table::V10(table) => (table.init)(logger, None),
                Table::V11(table) => (table.init)(&mut self.context, 7, &config, logger, None),
            }
        }
    }

    /// Ends what version 11 has started.
    pub(crate) fn finalize(&self) -> Result<(), Status> {
        match &self.table {
            // SAFETY: `init` returned the context.
            Table::V11(table) => ok(unsafe { (table.finalize)(self.context) }),
            _ => Ok(()),
        }
    }

    /// Unloads the library, as NCCL does with its last communicator.
    pub(crate) fn unload(&self) {
        // SAFETY: the caller uses nothing of the library after this.
        unsafe { libc::dlclose(self.library) };
    }

    pub(crate) fn name(&self) -> String {
        let name = match &self.table {
            Table::V8(table) => table.name,
            Table::V9(table) => table.name,
            Table::V10(table) => table.name,
            Table::V11(table) => table.name,
        };
        // SAFETY: a name is a string.
        unsafe { CStr::from_ptr(name.0) }.to_string_lossy().into_owned()
    }

    pub(crate) fn devices(&self) -> Result<c_int, Status> {
        let mut count = -1;
        ok(call!(self, devices(&mut count))).map(|()| count)
    }

    pub(crate) fn properties(&self, dev: c_int) -> Result<Properties, Status> {
        macro_rules! properties {
            ($table:expr, $type:ty, $of:expr) => {{
                let mut place = std::mem::MaybeUninit::<$type>::uninit();
                // SAFETY: written on success; the name is a string that stays valid.
                unsafe {
                    ok(($table.get_properties)(dev, place.as_mut_ptr()))?;
                    let properties = place.assume_init();
                    let properties = $of(&properties);
                    Properties {
                        name: CStr::from_ptr(properties.name).to_string_lossy().into_owned(),
                        ptr_support: properties.ptr_support,
                        max_recvs: properties.max_recvs,
                        speed: properties.speed,
                    }
                }
            }};
        }
        Ok(match &self.table {
            Table::V8(table) => properties!(table, PropertiesV8, |p: &PropertiesV8| *p),
            Table::V9(table) => properties!(table, PropertiesV9, |p: &PropertiesV9| *p),
            Table::V10(table) => properties!(table, PropertiesV9, |p: &PropertiesV9| *p),
            Table::V11(table) => properties!(table, PropertiesV11, |p: &PropertiesV11| p.v9),
        })
    }

    pub(crate) fn listen(&self, dev: c_int) -> Result<([u8; HANDLE_BYTES], Handle), Status> {
        let (mut handle, mut comm) = ([0_u8; HANDLE_BYTES], null_mut());
        let place = handle.as_mut_ptr().cast();
        // SAFETY: the arguments are as in the headers.
        let status = unsafe {
            match &self.table {
                Table::V8(table) => (table.listen)(dev, place, &mut comm),
                Table::V9(table) => (table.listen)(dev, place, &mut comm),
                Table::V10(table) => (table.listen)(dev, place, &mut comm),
                Table::V11(table) => (table.listen)(self.context, dev, place, &mut comm),
            }
        };
        ok(status).map(|()| (handle, comm))
    }

    pub(crate) fn connect(
        &self,
        dev: c_int,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Handle>, Status> {
        let (mut comm, mut device) = (null_mut(), null_mut());
        let (handle, config) = (handle.as_mut_ptr().cast(), CommConfig { traffic_class: 32 });
        // SAFETY: the arguments are as in the headers.
        let status = unsafe {
            match &self.table {
                Table::V8(table) => (table.connect)(dev, handle, &mut comm, &mut device),
                Table::V9(table) => (table.connect)(dev, handle, &mut comm, &mut device),
                Table::V10(table) => (table.connect)(dev, &config, handle, &mut comm, &mut device),
                Table::V11(table) => {
                    (table.connect)(self.context, dev, handle, &mut comm, &mut device)
                }
            }
        };
        some(status, comm)
    }

    pub(crate) fn accept(&self, listener: Handle) -> Result<Option<Handle>, Status> {
        let (mut comm, mut device) = (null_mut(), null_mut());
        let status = call!(self, accept(listener, &mut comm, &mut device));
        some(status, comm)
    }

    pub(crate) fn reg_mr(&self, comm: Handle, memory: &mut [u8]) -> Result<Handle, Status> {
        self.reg_mr_of(comm, memory, PTR_HOST)
    }

    pub(crate) fn reg_mr_of(
        &self,
        comm: Handle,
        memory: &mut [u8],
        kind: c_int,
    ) -> Result<Handle, Status> {
        let mut place = null_mut();
        let (data, len) = (memory.as_mut_ptr().cast(), memory.len());
        ok(call!(self, reg_mr(comm, data, len, kind, &mut place))).map(|()| place)
    }

    pub(crate) fn reg_mr_dma_buf(&self, comm: Handle) -> Result<(), Status> {
        let mut place = null_mut();
        ok(call!(self, reg_mr_dma_buf(comm, null_mut(), 4096, 4, 0, -1, &mut place)))
    }

    pub(crate) fn dereg_mr(&self, comm: Handle, memory: Handle) -> Result<(), Status> {
        ok(call!(self, dereg_mr(comm, memory)))
    }

    pub(crate) fn isend(
        &self,
        comm: Handle,
        data: *mut u8,
        size: usize,
        tag: c_int,
        memory: Handle,
    ) -> Result<Option<Handle>, Status> {
        let (mut request, data) = (null_mut(), data.cast());
        // SAFETY: the arguments are as in the headers.
        let status = unsafe {
            match &self.table {
                Table::V8(t) => (t.isend)(comm, data, size as c_int, tag, memory, &mut request),
                Table::V9(t) => (t.isend)(comm, data, size, tag, memory, &mut request),
                Table::V10(t) => (t.isend)(comm, data, size, tag, memory, null_mut(), &mut request),
                Table::V11(t) => (t.isend)(comm, data, size, tag, memory, null_mut(), &mut request),
            }
        };
        some(status, request)
    }

    /// Receives into these addresses, with sizes and tags. Like NCCL, it may say that it does not
    /// wait for the end.
    pub(crate) fn irecv(
        &self,
        comm: Handle,
        receives: &[(*mut u8, usize, c_int)],
        memory: Handle,
    ) -> Result<Option<Handle>, Status> {
        let count = receives.len() as c_int;
        let data: Vec<Handle> = receives.iter().map(|receive| receive.0.cast()).collect();
        let sizes: Vec<usize> = receives.iter().map(|receive| receive.1).collect();
        let ints: Vec<c_int> = sizes.iter().map(|size| *size as c_int).collect();
        let tags: Vec<c_int> = receives.iter().map(|receive| receive.2).collect();
        let memories = vec![memory; receives.len()];
        let (data, tags, memories) = (data.as_ptr(), tags.as_ptr(), memories.as_ptr());
        let mut request = std::ptr::without_provenance_mut(1);
        // SAFETY: the arguments are as in the headers.
        let status = unsafe {
            match &self.table {
                Table::V8(t) => {
                    (t.irecv)(comm, count, data, ints.as_ptr(), tags, memories, &mut request)
                }
                Table::V9(t) => {
                    (t.irecv)(comm, count, data, sizes.as_ptr(), tags, memories, &mut request)
                }
                Table::V10(t) => {
                    let sizes = sizes.as_ptr();
                    (t.irecv)(comm, count, data, sizes, tags, memories, null(), &mut request)
                }
                Table::V11(t) => {
                    let sizes = sizes.as_ptr();
                    (t.irecv)(comm, count, data, sizes, tags, memories, null(), &mut request)
                }
            }
        };
        some(status, request)
    }

    pub(crate) fn iflush(
        &self,
        comm: Handle,
        data: *mut u8,
        size: usize,
        memory: Handle,
    ) -> Result<Option<Handle>, Status> {
        let (data, size, memory) = ([data.cast()], [size as c_int], [memory]);
        let mut request = std::ptr::without_provenance_mut(1);
        let (data, size, memory) = (data.as_ptr(), size.as_ptr(), memory.as_ptr());
        let status = call!(self, iflush(comm, 1, data, size, memory, &mut request));
        some(status, request)
    }

    /// The sizes of a completed request.
    pub(crate) fn test(&self, request: Handle) -> Result<Option<[c_int; 8]>, Status> {
        let (mut done, mut sizes) = (-1, [-1; 8]);
        ok(call!(self, test(request, &mut done, sizes.as_mut_ptr())))?;
        match done {
            0 => Ok(None),
            1 => Ok(Some(sizes)),
            _ => Err(REMOTE_ERROR),
        }
    }

    pub(crate) fn close_send(&self, comm: Handle) -> Result<(), Status> {
        ok(call!(self, close_send(comm)))
    }

    pub(crate) fn close_recv(&self, comm: Handle) -> Result<(), Status> {
        ok(call!(self, close_recv(comm)))
    }

    pub(crate) fn close_listen(&self, comm: Handle) -> Result<(), Status> {
        ok(call!(self, close_listen(comm)))
    }

    /// The calls that only some networks need: the result of each, if it exists.
    pub(crate) fn get_device_mr(&self, comm: Handle, memory: Handle) -> Option<Status> {
        let function = match &self.table {
            Table::V8(table) => table.get_device_mr,
            Table::V9(table) => table.get_device_mr,
            Table::V10(table) => table.get_device_mr,
            Table::V11(table) => table.get_device_mr,
        };
        let mut place = null_mut();
        // SAFETY: the arguments are as in the headers.
        function.map(|function| unsafe { function(comm, memory, &mut place) })
    }

    pub(crate) fn irecv_consumed(&self, comm: Handle, request: Handle) -> Option<Status> {
        let function = match &self.table {
            Table::V8(table) => table.irecv_consumed,
            Table::V9(table) => table.irecv_consumed,
            Table::V10(table) => table.irecv_consumed,
            Table::V11(table) => table.irecv_consumed,
        };
        // SAFETY: the arguments are as in the headers.
        function.map(|function| unsafe { function(comm, 1, request) })
    }

    pub(crate) fn has_make_v_device(&self) -> bool {
        match &self.table {
            Table::V8(_) => false,
            Table::V9(table) => table.make_v_device.is_some(),
            Table::V10(table) => table.make_v_device.is_some(),
            Table::V11(table) => table.make_v_device.is_some(),
        }
    }

    pub(crate) fn set_net_attr(&self) -> Option<Status> {
        let Table::V11(table) = &self.table else { return None };
        let any = CommAttr {
            max_concurrent_peers: -1,
            min_concurrent_peers: -1,
            max_flows_per_peer: -1,
            min_flows_per_peer: -1,
        };
        let attr = NetAttr { send: any, recv: any, op: 4, algo: 1, proto: 2 };
        // SAFETY: the arguments are as in the headers.
        table.set_net_attr.map(|function| unsafe { function(self.context, &attr) })
    }
}
