//! QUIC by quinn: one connection, one stream, read into the destination memory. Encrypted, as QUIC
//! is.

use std::net::UdpSocket;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bowline_bench_common::udp::set_large_buffers;
use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, MtuDiscoveryConfig, RecvStream, SendStream,
    ServerConfig, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::runtime::{Builder, Runtime};

use crate::Result;
use crate::control::Server;
use crate::memory::{Places, allocate};
use crate::peer::{self, ANSWER_BYTES, Cutter};
use crate::spec::{Kind, Mode, Spec};

/// Most that one read asks for.
const READ_BYTES: usize = 1 << 20;
/// What QUIC adds to the payload of a datagram: header, tag, the frame's own.
const OVERHEAD_BYTES: u16 = 64;

/// Windows of four times what fits on the way; everything else as quinn has it. With eight times
/// that, BBR's start loses so many packets in the link's queue that quinn gives up ("too many
/// gaps").
fn transport(spec: &Spec) -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    let window = VarInt::from_u64((4 * spec.bdp_bytes()).max(8 << 20))?;
    config.stream_receive_window(window).receive_window(window).send_window(window.into());
    config.max_idle_timeout(Some(Duration::from_secs(30).try_into()?));
    if spec.rtt > 0.0 {
        config.initial_rtt(Duration::from_secs_f64(spec.rtt / 1e3));
    }
    if let Some(payload) = spec.mtu {
        let bytes = payload + OVERHEAD_BYTES;
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(bytes);
        config.initial_mtu(bytes).mtu_discovery_config(Some(discovery));
    }
    match spec.kind {
        Kind::QuinnBbr => config.congestion_controller_factory(Arc::new(BbrConfig::default())),
        _ => config.congestion_controller_factory(Arc::new(CubicConfig::default())),
    };
    Ok(Arc::new(config))
}

/// A socket with large buffers, and an endpoint that takes datagrams as large as were asked for.
fn endpoint(spec: &Spec, socket: UdpSocket, server: Option<ServerConfig>) -> Result<Endpoint> {
    set_large_buffers(&socket)?;
    let mut config = EndpointConfig::default();
    if let Some(payload) = spec.mtu {
        config.max_udp_payload_size(payload + OVERHEAD_BYTES)?;
    }
    let runtime = Arc::new(quinn::TokioRuntime);
    Ok(Endpoint::new(config, server, socket, runtime)?)
}

/// All in one thread, which is on one CPU anyway.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// The end that sends.
pub(crate) struct Sender {
    runtime: Runtime,
    _endpoint: Endpoint,
    send: SendStream,
    recv: RecvStream,
    memory: Vec<u8>,
    unanswered: usize,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let runtime = runtime()?;
        let (endpoint, send, recv) = runtime.block_on(open(spec))?;
        let memory = allocate(&Places::new(spec));
        Ok(Sender { runtime, _endpoint: endpoint, send, recv, memory, unanswered: 0 })
    }
}

async fn open(spec: &Spec) -> Result<(Endpoint, SendStream, RecvStream)> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(ring::default_provider())))
        .with_no_client_auth();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(spec)?);
    let endpoint = endpoint(spec, UdpSocket::bind((spec.from, 0))?, None)?;
    let connection = endpoint.connect_with(config, spec.data_at(), "localhost")?.await?;
    let (send, recv) = connection.open_bi().await?;
    Ok((endpoint, send, recv))
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        self.unanswered += 1;
        Ok(self.runtime.block_on(self.send.write_all(&self.memory[place]))?)
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        for _ in 0..std::mem::take(&mut self.unanswered) {
            let mut answer = [0; ANSWER_BYTES];
            self.runtime.block_on(self.recv.read_exact(&mut answer))?;
        }
        Ok(())
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    runtime()?.block_on(receive(spec, control))
}

async fn receive(spec: &Spec, control: &Server) -> Result<()> {
    let mut places = Places::new(spec);
    let mut memory = allocate(&places);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let mut config = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
    config.transport_config(transport(spec)?);
    let endpoint = endpoint(spec, UdpSocket::bind(spec.data_at())?, Some(config))?;
    control.listening()?;
    let connection = endpoint.accept().await.ok_or("the endpoint has closed")?.await?;
    let (mut send, mut recv) = connection.accept_bi().await?;
    let mut cutter = Cutter::new(spec);
    loop {
        let place = places.peek(READ_BYTES.min(cutter.left()));
        let got = recv.read(&mut memory[place]).await?.ok_or("the stream has ended")?;
        places.advance(got);
        control.add(got);
        if cutter.take(got) && spec.mode != Mode::Bulk {
            send.write_all(&[1; ANSWER_BYTES]).await?;
        }
    }
}

/// The server's certificate is made for one measurement: there is nobody to vouch for it.
#[derive(Debug)]
struct AnyServer(CryptoProvider);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
