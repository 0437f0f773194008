//! Changes of the number of masters between two starts, and the recovery of a group that has lost the
//! folders of its majority. Each ends with groups that consist of one master, which has everything and
//! which the others of its kind join with empty folders, or with one master of each kind without a
//! group.
//!
//! A folder of another group is never left where a master is started: its member could vote in the
//! old group. Folders are renamed, never deleted.

use super::{Launch, READY_TIMEOUT, check_group_ports};
use crate::local::{
    layout::{Layout, MASTER_KINDS, Role, is_empty, is_kind},
    state::Kind,
};
use anyhow::{Context, Result, anyhow, bail};
use dfs_client::group::{ChangeResult, GroupChange, GroupClient};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long a request to a master may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// Makes the changes that `layout` contains, so that its masters can be started.
pub(super) async fn change_members(mut layout: Layout, port: Option<u16>) -> Result<Layout> {
    for name in std::mem::take(&mut layout.recover) {
        recover(&mut layout, &name).await?;
    }
    if layout.masters_before > layout.masters {
        return remove_last(layout, port).await;
    }
    if layout.begins_to_form {
        layout.begin_forming(&Layout::namenode())?;
        layout.begin_forming(&Layout::jobtracker())?;
        layout.begins_to_form = false;
    } else if layout.masters > 1 && layout.is_renewed(Kind::Jobtracker) {
        layout.begin_forming(&Layout::jobtracker())?;
    }
    Ok(layout)
}

/// Makes the master `name` the only one of a new group, with everything in its folder.
async fn recover(layout: &mut Layout, name: &str) -> Result<()> {
    let mut roles = MASTER_KINDS.into_iter().flat_map(|kind| layout.masters_of(kind));
    let role = roles.find(|role| role.name == name).context("the plan has checked the name")?;
    check_group_ports(layout, None)?;
    let ports = layout.ports.context("layout.json has no ports: the cluster was never started")?;
    layout.make()?;
    layout.write_config(ports, layout.other_ports.clone())?;
    let mut launch = Launch::of(layout.clone());
    launch.spawn_with(&role, &["--recover"])?;
    launch.await_daemon(0, Instant::now() + READY_TIMEOUT).await?;
    launch.stop()?;
    if layout.masters > 1 {
        layout.begin_forming(&role)?;
    }
    Ok(())
}

/// Starts the masters, removes the last ones from their groups, and stops all.
async fn remove_last(mut layout: Layout, port: Option<u16>) -> Result<Layout> {
    let left = layout.masters as usize;
    let mut all = layout.clone();
    (all.masters, all.removes_last) = (layout.masters_before, true);
    let mut launch = Box::pin(Launch::start_namenodes(all, port)).await?;
    Box::pin(launch.start_jobtracker()).await?;
    for kind in MASTER_KINDS {
        let (role, addresses) = launch.layout.group(kind);
        let group = GroupClient::new(role, addresses, launch.credentials()?)?;
        for address in addresses.iter().skip(left) {
            let removed = remove(&group, address).await;
            removed.with_context(|| format!("cannot remove {address} from the group"))?;
        }
    }
    launch.stop()?;
    layout.ports = launch.layout.ports;
    layout.other_ports = launch.layout.other_ports.clone();
    for kind in MASTER_KINDS {
        layout.other_ports.of_mut(kind).truncate(left - 1);
    }
    (layout.masters_before, layout.forming) = (layout.masters, Vec::new());
    for role in MASTER_KINDS.into_iter().flat_map(|kind| launch.layout.masters_of(kind).skip(left)) {
        layout.keep_folder(&role)?;
    }
    layout.store()?;
    Ok(layout)
}

async fn remove(group: &GroupClient, address: &str) -> Result<()> {
    let (change, end) = (GroupChange::Remove(address.to_owned()), Instant::now() + READY_TIMEOUT);
    loop {
        let why = match group.change(&change, REQUEST_TIMEOUT).await {
            Ok(ChangeResult::Done(_)) => return Ok(()),
            Ok(ChangeResult::WaitsFor(what)) => format!("it waits for {what}"),
            Err(why) => why,
        };
        if Instant::now() > end {
            bail!(why);
        }
        sleep(PAUSE).await;
    }
}

impl Layout {
    /// Records that this master has everything, and that the others of its kind join it with empty
    /// folders. Folders of the others that are not empty are renamed and kept.
    pub fn begin_forming(&mut self, founder: &Role) -> Result<()> {
        for role in self.masters_of(founder.kind).filter(|role| role != founder) {
            self.keep_folder(&role)?;
        }
        self.forming.retain(|name| !is_kind(name, founder.kind));
        self.forming.push(founder.name.clone());
        self.masters_before = self.masters;
        // Otherwise it is stored with the ports.
        let has_ports = |kind| self.other_ports.of(kind).len() + 1 == self.masters as usize;
        if self.ports.is_some() && MASTER_KINDS.into_iter().all(has_ports) { self.store() } else { Ok(()) }
    }

    /// Returns the folders of the masters of this kind except the first, which are not empty.
    pub fn other_folders(&self, kind: Kind) -> Vec<PathBuf> {
        let folders = self.masters_of(kind).skip(1).map(|role| self.data_dir(&role));
        folders.filter(|folder| !is_empty(folder)).collect()
    }

    /// Records that all masters of this kind have joined.
    pub(in crate::local) fn end_forming(&mut self, kind: Kind) -> Result<()> {
        let before = self.forming.len();
        self.forming.retain(|name| !is_kind(name, kind));
        if self.forming.len() < before { self.store() } else { Ok(()) }
    }

    /// Returns whether a master forms the group, which the others join.
    pub(in crate::local) fn is_founder(&self, role: &Role) -> bool {
        match self.forming.iter().find(|name| is_kind(name, role.kind)) {
            Some(founder) => role.name == *founder,
            None => !self.formatted && (*role == Self::namenode() || *role == Self::jobtracker()),
        }
    }

    fn keep_folder(&self, role: &Role) -> Result<()> {
        let folder = self.data_dir(role);
        if is_empty(&folder) {
            return Ok(());
        }
        let kept = unused_name(&folder);
        fs::rename(&folder, &kept)
            .and_then(|()| fs::File::open(folder.parent().unwrap_or(&folder))?.sync_all())
            .with_context(|| format!("cannot rename {} to {}", folder.display(), kept.display()))?;
        eprintln!("mrctl: note: the old folder of {} is kept as {}", role.name, kept.display());
        Ok(())
    }
}

/// Returns a name beside a folder that is not in use.
pub fn unused_name(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..).map(|number| folder.with_file_name(format!("{name}.replaced-{number}")));
    names.into_iter().find(|path| !path.exists()).expect("a number is not in use")
}

/// Returns the arguments of a master of a group, so that it joins the others if its folder is empty.
pub(super) fn joining(mut args: Vec<String>, masters: &str) -> Result<Vec<String>> {
    if args.iter().any(|word| word == "--join") {
        return Ok(args);
    }
    let listen = args.iter().position(|word| word == "--listen").and_then(|at| args.get(at + 1));
    let own = listen.ok_or_else(|| anyhow!("a master has --listen"))?;
    let others: Vec<&str> = masters.split(',').filter(|address| address != own).collect();
    let others = others.join(",");
    args.extend(["--join".into(), others]);
    Ok(args)
}
