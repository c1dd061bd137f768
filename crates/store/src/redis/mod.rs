//! A store in Redis, or in any server that speaks its protocol.
//!
//! The client is our own: the protocol takes five kinds of replies to four commands, and the usual
//! client brings two dozen crates into every program.

mod resp;

#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use crate::entry::OVERHEAD_BYTES;
use crate::key::Job;
use crate::location::RedisLocation;
use crate::net::{Client, Connection, NetError};
use crate::owned::Backend;
use crate::{Key, MAX_VALUE_BYTES, StoreError};
use resp::Reply;

const HINT: &str = "start redis-server there or name another store; it is tried again later";

/// Replaces a key's value, or removes it, if it is still the one seen. Values are never empty, so
/// an empty one stands for none.
const REPLACE: &str = "\
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end \
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) \
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end \
return 1";

pub(crate) struct RedisBackend {
    url: String,
    location: RedisLocation,
    prefix: String,
    client: Client,
}

impl RedisBackend {
    pub(crate) fn new(location: RedisLocation, job: &Job) -> RedisBackend {
        RedisBackend {
            url: location.to_string(),
            prefix: format!("bowline/{}/", job.as_str()),
            client: Client::new(location.endpoint.clone()),
            location,
        }
    }

    fn command(&mut self, parts: &[&[u8]]) -> Result<Reply, StoreError> {
        let location = &self.location;
        let reply = self.client.talk(
            |connection| greet(connection, location),
            |connection| exchange(connection, parts),
        );
        match reply {
            Ok(Reply::Error(why)) | Err(NetError::Refused(why)) => Err(self.refused(&why)),
            Ok(reply) => Ok(reply),
            Err(NetError::Io(doing, source)) => Err(self.unavailable(doing, source)),
            Err(NetError::Malformed(why)) => Err(self.malformed(&why)),
        }
    }

    fn unavailable(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::Unavailable { store: self.url.clone(), doing, source, hint: HINT }
    }

    fn malformed(&self, why: &str) -> StoreError {
        let why = format!("{why}; is it a Redis server?");
        StoreError::Malformed { store: self.url.clone(), why }
    }

    fn refused(&mut self, why: &str) -> StoreError {
        // A refused login persists for the connection.
        self.client.hang_up();
        let hint = match why.split(' ').next().unwrap_or_default() {
            "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" => {
                return self.unavailable("asking", io::Error::other(why.to_owned()));
            }
            "NOAUTH" => "; write redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST",
            "READONLY" => "; name the primary, this is a replica",
            _ => "",
        };
        StoreError::Refused { store: self.url.clone(), why: format!("{why}{hint}") }
    }

    fn key(&self, key: &Key) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }
}

fn exchange(connection: &mut Connection, parts: &[&[u8]]) -> Result<Reply, NetError> {
    connection.send(&resp::encode(parts))?;
    resp::read(connection, MAX_VALUE_BYTES + OVERHEAD_BYTES)
}

/// Logs in, and selects the database.
fn greet(connection: &mut Connection, location: &RedisLocation) -> Result<(), NetError> {
    if let Some(password) = &location.password {
        let user = location.user.as_deref();
        let parts = [Some("AUTH"), user, Some(password)];
        let parts: Vec<&[u8]> = parts.into_iter().flatten().map(str::as_bytes).collect();
        expect_ok(exchange(connection, &parts)?, "the login")?;
    }
    if location.db != 0 {
        let parts = [&b"SELECT"[..], &location.db.to_string().into_bytes()];
        expect_ok(exchange(connection, &parts)?, "the choice of a database")?;
    }
    Ok(())
}

fn expect_ok(reply: Reply, what: &str) -> Result<(), NetError> {
    match reply {
        Reply::Simple(_) => Ok(()),
        Reply::Error(why) => Err(NetError::Refused(why)),
        _ => Err(NetError::malformed(format!("an odd answer to {what}"))),
    }
}

impl Backend for RedisBackend {
    fn url(&self) -> &str {
        &self.url
    }

    fn load(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        match self.command(&[b"GET", &self.key(key)])? {
            Reply::Bulk(bytes) => Ok(bytes),
            _ => Err(self.malformed("an odd answer to GET")),
        }
    }

    fn replace(
        &mut self,
        key: &Key,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> Result<bool, StoreError> {
        let key = self.key(key);
        let (bytes, ttl) = new.unwrap_or_default();
        let ttl_ms = ttl.as_millis().clamp(1, 1 << 40).to_string();
        let seen = seen.unwrap_or_default();
        let parts = [b"EVAL", REPLACE.as_bytes(), b"1", &key, seen, bytes, ttl_ms.as_bytes()];
        match self.command(&parts)? {
            Reply::Integer(done) => Ok(done == 1),
            _ => Err(self.malformed("an odd answer to EVAL")),
        }
    }
}
