//! Home folders: `/user/NAME`, mode 700, owned by the user, with the default quota.
//!
//! The driver creates the home folder of a user at the first call of the user, like other
//! operations: the creation is planned without changes, and then recorded.

use super::{Entry, State, encode_for_log};
use crate::namenode::{namespace::Record, op::Now, plan::Plan};
use dfs_client::{
    error::{Error, Kind},
    path::DfsPath,
};

const HOME_MODE: u32 = 0o700;

fn home_of(user: &str) -> Result<DfsPath, Error> {
    // A slash in the name would create a folder in the home folder of another user.
    if user.is_empty() || user.contains('/') {
        return Err(Error::new(
            Kind::Invalid,
            format!("user {user:?} cannot have a home folder: a user name must not be empty or contain /"),
        ));
    }
    Ok(DfsPath::parse(&format!("/user/{user}"))?)
}

impl State {
    /// Returns whether a file or folder exists at the path of the home folder of the user.
    pub(crate) fn has_home(&self, user: &str) -> Result<bool, Error> {
        Ok(self.namespace.find(&home_of(user)?)?.is_some())
    }

    /// Creates the home folder of the user, if the path does not exist. The record must be durable
    /// before any answer that could depend on it is sent.
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
        self.apply_record(now, &record);
        Ok(Some(Entry { record, bytes }))
    }
}
