//! A store in etcd (3.4 or later), using the JSON form of its API.
//!
//! An entry lives as long as its lease. All entries that are put with the same TTL within a quarter
//! of it share a lease, which is never renewed: an entry that is put again moves to a newer lease,
//! and one that is not ends with its own, at most a quarter too late.

mod http;

#[cfg(test)]
mod tests;

use std::io;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::key::Job;
use crate::net::{Client, Endpoint, NetError};
use crate::owned::Backend;
use crate::{Key, StoreError};
use http::Response;

const HINT: &str = "start etcd there or name another store; it is tried again later";

pub(crate) struct EtcdBackend {
    url: String,
    endpoint: Endpoint,
    prefix: String,
    client: Client,
    lease: Option<Lease>,
}

/// A lease for new entries.
struct Lease {
    id: String,
    ttl: Duration,
    granted: Instant,
}

impl EtcdBackend {
    pub(crate) fn new(endpoint: Endpoint, job: &Job) -> EtcdBackend {
        EtcdBackend {
            url: format!("etcd://{endpoint}"),
            prefix: format!("bowline/{}/", job.as_str()),
            client: Client::new(endpoint.clone()),
            endpoint,
            lease: None,
        }
    }

    fn key(&self, key: &Key) -> String {
        BASE64.encode(format!("{}{key}", self.prefix))
    }

    /// Calls a method of the API.
    fn call(&mut self, path: &str, request: &Value) -> Result<Value, StoreError> {
        let (host, body) = (self.endpoint.to_string(), request.to_string());
        let response = self
            .client
            .talk(|_| Ok(()), |connection| http::post(connection, &host, path, body.as_bytes()));
        let Response { status, keep_alive, body } = match response {
            Ok(response) => response,
            Err(NetError::Io(doing, source)) => return Err(self.unavailable(doing, source)),
            Err(NetError::Malformed(why)) => return Err(self.malformed(&why)),
            Err(NetError::Refused(why)) => return Err(self.refused(403, why)),
        };
        if !keep_alive {
            self.client.hang_up();
        }
        let answer = serde_json::from_slice::<Value>(&body);
        match (status, answer) {
            (200, Ok(answer)) => Ok(answer),
            (200, Err(_)) => Err(self.malformed("an answer that is no JSON")),
            (status, answer) => {
                let message = answer.ok().and_then(|a| a["message"].as_str().map(str::to_owned));
                Err(self
                    .refused(status, message.unwrap_or_else(|| format!("HTTP status {status}"))))
            }
        }
    }

    fn unavailable(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::Unavailable { store: self.url.clone(), doing, source, hint: HINT }
    }

    fn malformed(&self, why: &str) -> StoreError {
        let why = format!("{why}; is it an etcd server of version 3.4 or later?");
        StoreError::Malformed { store: self.url.clone(), why }
    }

    /// 503 and 504 mean a cluster without a leader, or a busy one.
    fn refused(&self, status: u16, why: String) -> StoreError {
        match status {
            503 | 504 => self.unavailable("asking", io::Error::other(why)),
            _ => StoreError::Refused { store: self.url.clone(), why },
        }
    }

    /// The lease for entries that are to live for `ttl` from now.
    fn lease_for(&mut self, ttl: Duration) -> Result<String, StoreError> {
        if let Some(lease) = &self.lease
            && lease.ttl == ttl
            && lease.granted.elapsed() < ttl / 4
        {
            return Ok(lease.id.clone());
        }
        // Taken before the call: the server starts its clock later.
        let granted = Instant::now();
        let seconds = (ttl + ttl / 4).as_secs_f64().ceil().max(1.0) as u64;
        let answer = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let id = answer["ID"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
        let id = id.ok_or_else(|| self.malformed("a lease without a number"))?;
        self.lease = Some(Lease { id: id.clone(), ttl, granted });
        Ok(id)
    }

    fn replace_once(
        &mut self,
        key: &str,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> Result<bool, StoreError> {
        let change = match new {
            Some((bytes, ttl)) => {
                let lease = self.lease_for(ttl)?;
                json!({ "requestPut": { "key": key, "value": BASE64.encode(bytes), "lease": lease } })
            }
            None => json!({ "requestDeleteRange": { "key": key } }),
        };
        let unchanged = match seen {
            Some(seen) => json!({ "key": key, "target": "VALUE", "value": BASE64.encode(seen) }),
            None => json!({ "key": key, "target": "VERSION", "version": "0" }),
        };
        let request = json!({ "compare": [unchanged], "success": [change] });
        let answer = self.call("/v3/kv/txn", &request)?;
        if !answer["header"].is_object() {
            return Err(self.malformed("an odd answer to a transaction"));
        }
        // JSON answers omit false values.
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }
}

impl Backend for EtcdBackend {
    fn url(&self) -> &str {
        &self.url
    }

    fn load(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let answer = self.call("/v3/kv/range", &json!({ "key": self.key(key) }))?;
        if !answer["header"].is_object() {
            return Err(self.malformed("an odd answer to a query"));
        }
        let Some(value) = answer["kvs"].get(0).map(|kv| &kv["value"]) else {
            return Ok(None);
        };
        let decoded = BASE64.decode(value.as_str().unwrap_or_default());
        decoded.map(Some).map_err(|_| self.malformed("a value that is not base64"))
    }

    fn replace(
        &mut self,
        key: &Key,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> Result<bool, StoreError> {
        let key = self.key(key);
        let had_lease = self.lease.is_some();
        match self.replace_once(&key, seen, new) {
            // A lease can be revoked, or lost with the server's data.
            Err(StoreError::Refused { why, .. })
                if had_lease && why.contains("lease not found") =>
            {
                self.lease = None;
                self.replace_once(&key, seen, new)
            }
            outcome => outcome,
        }
    }
}
