//! Changes of the number of NameNodes between two starts, and the recovery of a group that has lost the
//! folders of its majority. Each ends with a group that consists of one NameNode, which has all files
//! and which the others join with empty folders, or with one NameNode without a group.
//!
//! A folder of another group is never left where a NameNode is started: its member could vote in the
//! old group. Folders are renamed, never deleted.

use super::{Launch, READY_TIMEOUT, check_group_ports};
use crate::local::layout::{Layout, Role, is_empty};
use anyhow::{Context, Result, anyhow, bail};
use dfs_client::group::{ChangeResult, GroupChange, GroupClient};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long a request to a NameNode may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(200);

/// Makes the changes that `layout` contains, so that its NameNodes can be started.
pub(super) async fn change_members(mut layout: Layout, port: Option<u16>) -> Result<Layout> {
    if let Some(name) = layout.recover.take() {
        recover(&mut layout, &name).await?;
    }
    if layout.masters_before > layout.masters {
        layout = remove_last(layout, port).await?;
    } else if layout.begins_to_form {
        layout.begin_forming(&Layout::namenode().name)?;
    }
    Ok(layout)
}

/// Makes the NameNode `name` the only one of a new group, with everything in its folder.
async fn recover(layout: &mut Layout, name: &str) -> Result<()> {
    let role = layout.namenodes().find(|role| role.name == name).context("the plan has checked the name")?;
    check_group_ports(layout, None)?;
    let ports = layout.ports.context("layout.json has no ports: the cluster was never started")?;
    layout.make()?;
    layout.write_config(ports, layout.other_namenode_ports.clone())?;
    let mut launch = Launch::of(layout.clone());
    launch.spawn_with(&role, &["--recover"])?;
    launch.await_daemon(0, Instant::now() + READY_TIMEOUT).await?;
    launch.stop()?;
    if layout.masters > 1 {
        layout.begin_forming(name)?;
    }
    Ok(())
}

/// Starts the NameNodes, removes the last ones from their group, and stops all.
async fn remove_last(mut layout: Layout, port: Option<u16>) -> Result<Layout> {
    let mut all = layout.clone();
    (all.masters, all.removes_last) = (layout.masters_before, true);
    let mut launch = Box::pin(Launch::start_namenodes(all, port)).await?;
    let addresses = launch.layout.config.cluster.namenode.clone();
    let group = GroupClient::new(security::Role::NameNode, &addresses, launch.credentials()?)?;
    for address in addresses.iter().skip(layout.masters as usize) {
        remove(&group, address).await.with_context(|| format!("cannot remove {address} from the group"))?;
    }
    launch.stop()?;
    let removed: Vec<Role> = launch.layout.namenodes().skip(layout.masters as usize).collect();
    layout.ports = launch.layout.ports;
    layout.other_namenode_ports.clone_from(&launch.layout.other_namenode_ports);
    layout.other_namenode_ports.truncate(layout.masters as usize - 1);
    (layout.masters_before, layout.forming) = (layout.masters, None);
    for role in removed {
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
    /// Records that the NameNode `founder` has all files, and that the others join it with empty
    /// folders. Folders of the others that are not empty are renamed and kept.
    pub fn begin_forming(&mut self, founder: &str) -> Result<()> {
        for role in self.namenodes().filter(|role| role.name != founder) {
            self.keep_folder(&role)?;
        }
        (self.forming, self.begins_to_form) = (Some(founder.to_owned()), false);
        self.masters_before = self.masters;
        // Otherwise it is stored with the ports.
        let has_ports = self.ports.is_some() && self.other_namenode_ports.len() + 1 == self.masters as usize;
        if has_ports { self.store() } else { Ok(()) }
    }

    /// Returns the folders of the NameNodes except the first, which are not empty.
    pub fn other_namenode_folders(&self) -> Vec<PathBuf> {
        let folders = self.namenodes().skip(1).map(|role| self.data_dir(&role));
        folders.filter(|folder| !is_empty(folder)).collect()
    }

    /// Records that all NameNodes have joined.
    pub(in crate::local) fn end_forming(&mut self) -> Result<()> {
        if self.forming.take().is_some() { self.store() } else { Ok(()) }
    }

    /// Returns whether a NameNode forms the group, which the others join.
    pub(in crate::local) fn is_founder(&self, role: &Role) -> bool {
        match &self.forming {
            Some(founder) => role.name == *founder,
            None => !self.formatted && *role == Self::namenode(),
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

/// Returns the arguments of a NameNode of a group, so that it joins the others if its folder is empty.
pub(super) fn joining(mut args: Vec<String>, namenodes: &str) -> Result<Vec<String>> {
    if args.iter().any(|word| word == "--join") {
        return Ok(args);
    }
    let listen = args.iter().position(|word| word == "--listen").and_then(|at| args.get(at + 1));
    let own = listen.ok_or_else(|| anyhow!("a namenode has --listen"))?;
    let others: Vec<&str> = namenodes.split(',').filter(|address| address != own).collect();
    let others = others.join(",");
    args.extend(["--join".into(), others]);
    Ok(args)
}
