//! Home folders: `/user/NAME`, mode 700, owned by the user, with the default quota.
//!
//! The driver asks for one at a user's first call. It is an operation like others: planned read-only, then recorded.

use super::{Entry, State, encode_for_log};
use crate::{
    error::{Error, Kind},
    namenode::{namespace::Record, op::Now, plan::Plan},
    path::DfsPath,
};

const HOME_MODE: u32 = 0o700;

fn home_of(user: &str) -> Result<DfsPath, Error> {
    // A path separator would name a folder within somebody else's home.
    if user.is_empty() || user.contains('/') {
        return Err(Error::new(
            Kind::Invalid,
            format!("user {user:?} cannot have a home folder: a user name is not empty and has no /"),
        ));
    }
    Ok(DfsPath::parse(&format!("/user/{user}"))?)
}

impl State {
    /// Whether something is at the place of the user's home folder.
    pub(crate) fn has_home(&self, user: &str) -> Result<bool, Error> {
        Ok(self.namespace.find(&home_of(user)?)?.is_some())
    }

    /// Makes the user's home folder, if nothing is in its place. The record is to be made durable before any answer
    /// leaves that could depend on it.
    pub(crate) fn make_home(&mut self, now: Now, user: &str) -> Result<Option<Entry>, Error> {
        let path = home_of(user)?;
        if self.namespace.find(&path)?.is_some() {
            return Ok(None);
        }
        self.refuse_in_safemode()?;
        let mut plan = Plan::new(&self.namespace, &self.settings, user);
        plan.make_home(&path, HOME_MODE)?;
        let record = Record { at_ms: now.wall_ms, request: None, edits: plan.finish()? };
        let bytes = encode_for_log(&record)?;
        self.take(now, &record);
        Ok(Some(Entry { record, bytes }))
    }
}
