//! Compares the namespace with a simple model: a flat map from path to entry, which visits all
//! entries to compute a sum, and applies operations with several steps to a copy. All results and
//! listings must be equal.

use super::{
    bench::{BLOCK_BYTES, Bench, path},
    random::Random,
};
use crate::namenode::op::{BlockLength, CommitMove, OnAbandon, Op, Outcome, Quota};
use dfs_client::{
    error::Kind,
    ids::{Start, StartId},
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
struct ModelEntry {
    /// `None` for a folder.
    file: Option<Content>,
    quota: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
struct Content {
    holder: Option<&'static str>,
    blocks: Vec<BlockLength>,
}

/// All entries except the root, by path.
type Flat = BTreeMap<String, ModelEntry>;

#[derive(Debug, Clone, Default)]
struct Model {
    flat: Flat,
    root_quota: Option<u64>,
    epoch: u64,
    commits: BTreeSet<String>,
}

fn parent_of(at: &str) -> &str {
    match at.rfind('/') {
        Some(0) | None => "/",
        Some(slash) => &at[..slash],
    }
}

fn is_within(at: &str, folder: &str) -> bool {
    folder == "/" || at == folder || at.starts_with(&format!("{folder}/"))
}

impl Model {
    fn is_folder(&self, at: &str) -> Result<bool, Kind> {
        if at == "/" {
            return Ok(true);
        }
        match self.flat.get(at) {
            Some(ModelEntry { file: None, .. }) => Ok(true),
            Some(_) => Err(Kind::NotDirectory),
            None => self.is_folder(parent_of(at)).map(|_| false),
        }
    }

    /// Returns the entry at a path, or an error if a parent in the path is a file.
    fn find(&self, at: &str) -> Result<Option<&ModelEntry>, Kind> {
        if at != "/" {
            self.is_folder(parent_of(at))?;
        }
        Ok(self.flat.get(at))
    }

    fn get(&self, at: &str) -> Result<&ModelEntry, Kind> {
        self.find(at)?.ok_or(if at == "/" { Kind::IsDirectory } else { Kind::NotFound })
    }

    fn check_or_make_parents(&mut self, at: &str, make: bool) -> Result<(), Kind> {
        if self.is_folder(parent_of(at))? {
            return Ok(());
        }
        if !make {
            return Err(Kind::NotFound);
        }
        let folder = parent_of(at).to_owned();
        self.check_or_make_parents(&folder, true)?;
        self.flat.insert(folder, ModelEntry { file: None, quota: None });
        Ok(())
    }

    fn remove(&mut self, at: &str) {
        self.flat.retain(|other, _| !is_within(other, at));
    }

    fn relocate(&mut self, from: &str, to: &str) {
        let moved: Flat = self
            .flat
            .iter()
            .filter(|(at, _)| is_within(at, from))
            .map(|(at, t)| (at.clone(), t.clone()))
            .collect();
        self.remove(from);
        for (at, entry) in moved {
            self.flat.insert(format!("{to}{}", &at[from.len()..]), entry);
        }
    }

    fn closed_file_blocks(&self, at: &str) -> Result<Vec<BlockLength>, Kind> {
        match &self.get(at)?.file {
            None => Err(Kind::IsDirectory),
            Some(Content { holder: Some(_), .. }) => Err(Kind::Busy),
            Some(content) => Ok(content.blocks.clone()),
        }
    }

    fn entries_in(&self, folder: &str) -> u64 {
        1 + self.flat.keys().filter(|at| *at != folder && is_within(at, folder)).count() as u64
    }

    /// Returns whether a folder that has grown since `before` exceeds its quota.
    fn over_quota(&self, before: &Model) -> bool {
        let over = |at: &str, quota: Option<u64>| {
            quota.is_some_and(|max| self.entries_in(at) > before.entries_in(at) && self.entries_in(at) > max)
        };
        over("/", self.root_quota)
            || self.flat.iter().any(|(at, entry)| before.flat.contains_key(at) && over(at, entry.quota))
    }

    fn step(&mut self, op: &Op) -> Result<(), Kind> {
        let mut copy = self.clone();
        copy.try_step(op)?;
        if copy.over_quota(self) {
            return Err(Kind::Quota);
        }
        *self = copy;
        Ok(())
    }

    fn try_step(&mut self, op: &Op) -> Result<(), Kind> {
        match op {
            Op::Create { path, holder, overwrite, make_parents, .. } => {
                self.create(path.as_str(), name_of(holder), *overwrite, *make_parents)
            }
            Op::Append { path, holder } => {
                self.closed_file_blocks(path.as_str())?;
                let entry = self.flat.get_mut(path.as_str()).unwrap();
                entry.file.as_mut().unwrap().holder = Some(name_of(holder));
                Ok(())
            }
            Op::Mkdir { path, parents, .. } => self.mkdir(path.as_str(), *parents),
            Op::Rename { from, to, overwrite } => self.rename(from.as_str(), to.as_str(), *overwrite),
            Op::Delete { path, recursive } => self.delete(path.as_str(), *recursive),
            Op::SetQuota { path, quota } => {
                if path.is_root() {
                    self.root_quota = quota.files;
                    return Ok(());
                }
                if self.get(path.as_str())?.file.is_some() {
                    return Err(Kind::NotDirectory);
                }
                self.flat.get_mut(path.as_str()).unwrap().quota = quota.files;
                Ok(())
            }
            Op::Concat { target, sources } => {
                let sources: Vec<&str> = sources.iter().map(dfs_client::path::DfsPath::as_str).collect();
                self.concat(target.as_str(), &sources)
            }
            Op::Commit { start, commit_id, moves, deletes, .. } => {
                let deletes: Vec<&str> = deletes.iter().map(dfs_client::path::DfsPath::as_str).collect();
                self.commit(start.epoch, commit_id, moves, &deletes)
            }
            other => panic!("not modelled: {other:?}"),
        }
    }

    fn create(&mut self, at: &str, holder: &'static str, overwrite: bool, make: bool) -> Result<(), Kind> {
        if at == "/" {
            return Err(Kind::IsDirectory);
        }
        self.check_or_make_parents(at, make)?;
        match self.flat.get(at).map(|entry| &entry.file) {
            Some(None) => return Err(Kind::IsDirectory),
            Some(Some(Content { holder: Some(other), .. })) if *other != holder || !overwrite => {
                return Err(Kind::Busy);
            }
            Some(_) if !overwrite => return Err(Kind::Exists),
            _ => {}
        }
        let content = Content { holder: Some(holder), blocks: vec![] };
        self.flat.insert(at.into(), ModelEntry { file: Some(content), quota: None });
        Ok(())
    }

    fn mkdir(&mut self, at: &str, parents: bool) -> Result<(), Kind> {
        if at == "/" {
            return if parents { Ok(()) } else { Err(Kind::Exists) };
        }
        self.check_or_make_parents(at, parents)?;
        match self.flat.get(at) {
            Some(entry) if entry.file.is_none() && parents => Ok(()),
            Some(_) => Err(Kind::Exists),
            None => {
                self.flat.insert(at.into(), ModelEntry { file: None, quota: None });
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str, overwrite: bool) -> Result<(), Kind> {
        if from == "/" {
            return Err(Kind::Refused);
        }
        let source = self.get(from)?.clone();
        if from == to {
            return Ok(());
        }
        if is_within(to, from) {
            return Err(Kind::Invalid);
        }
        if to == "/" {
            return Err(Kind::Exists);
        }
        self.check_or_make_parents(to, false)?;
        if let Some(old) = self.flat.get(to) {
            match &old.file {
                None => return Err(Kind::Exists),
                Some(_) if !overwrite => return Err(Kind::Exists),
                Some(_) if source.file.is_none() => return Err(Kind::NotDirectory),
                Some(Content { holder: Some(_), .. }) => return Err(Kind::Busy),
                Some(_) => self.remove(to),
            }
        }
        self.relocate(from, to);
        Ok(())
    }

    fn delete(&mut self, at: &str, recursive: bool) -> Result<(), Kind> {
        if at == "/" {
            return Err(Kind::Refused);
        }
        if self.find(at)?.is_some() && !recursive && self.entries_in(at) > 1 {
            return Err(Kind::NotEmpty);
        }
        self.remove(at);
        Ok(())
    }

    fn concat(&mut self, target: &str, sources: &[&str]) -> Result<(), Kind> {
        self.closed_file_blocks(target)?;
        let mut used = vec![target];
        for source in sources {
            self.closed_file_blocks(source)
                .map_err(|kind| if used.contains(source) { Kind::Invalid } else { kind })?;
            if used.contains(source) {
                return Err(Kind::Invalid);
            }
            used.push(source);
        }
        for source in sources {
            let blocks = self.closed_file_blocks(source)?;
            self.flat.remove(*source);
            self.flat.get_mut(target).unwrap().file.as_mut().unwrap().blocks.extend(blocks);
        }
        Ok(())
    }

    fn commit(&mut self, epoch: u64, id: &str, moves: &[CommitMove], deletes: &[&str]) -> Result<(), Kind> {
        if epoch < self.epoch {
            return Err(Kind::Fenced);
        }
        self.epoch = epoch;
        if self.commits.contains(id) {
            return Ok(());
        }
        let before = self.clone();
        let parent = |at: &str| at[..at.rfind('/').unwrap()].to_owned();
        let is_piece =
            |at: &str| moves.iter().flat_map(|step| &step.pieces).any(|piece| piece.as_str() == at);
        for output in deletes.iter().map(|at| parent(at)) {
            let is_foreign = |at: &String| {
                *at != "/" && parent(at) == output && !deletes.contains(&at.as_str()) && !is_piece(at)
            };
            let is_target =
                moves.iter().any(|step| step.to.as_str() != "/" && parent(step.to.as_str()) == output);
            if is_target && deletes.iter().all(|at| *at != "/") && before.flat.keys().any(is_foreign) {
                return Err(Kind::Exists);
            }
        }
        for step in moves {
            let to = step.to.as_str();
            if deletes.iter().any(|at| is_within(to, at)) {
                return Err(Kind::Invalid);
            }
            if to == "/" {
                return Err(Kind::IsDirectory);
            }
            if before.find(to)?.is_some() || self.flat.contains_key(to) {
                return Err(Kind::Exists);
            }
            self.check_or_make_parents(to, true)?;
            let mut content = Content { holder: None, blocks: vec![] };
            for piece in &step.pieces {
                before.closed_file_blocks(piece.as_str())?;
                let taken = self.flat.remove(piece.as_str()).ok_or(Kind::Invalid)?;
                content.blocks.extend(taken.file.unwrap().blocks);
            }
            self.flat.insert(to.into(), ModelEntry { file: Some(content), quota: None });
        }
        for at in deletes {
            if *at == "/" {
                return Err(Kind::Refused);
            }
            self.remove(at);
        }
        self.commits.insert(id.into());
        Ok(())
    }
}

fn name_of(holder: &str) -> &'static str {
    ["w", "v"].into_iter().find(|name| *name == holder).unwrap()
}

struct RandomModel {
    bench: Bench,
    model: Model,
    random: Random,
    /// For each kind of operation, how many succeeded and how many were refused.
    outcome_counts: BTreeMap<&'static str, [u32; 2]>,
}

impl RandomModel {
    /// Returns a random path. Uses few names, and often an existing path, so that operations affect
    /// the same paths.
    fn path(&mut self) -> String {
        let known: Vec<String> = self.model.flat.keys().cloned().collect();
        if !known.is_empty() && self.random.once_in(2) {
            return self.random.pick(&known);
        }
        let depth = self.random.pick(&[0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4]);
        let names = (0..depth).map(|_| format!("/{}", self.random.pick(&["a", "b", "c"])));
        let at: String = names.collect();
        if at.is_empty() { "/".into() } else { at }
    }

    /// Returns a file that is not open for writing or, sometimes, any path.
    fn closed_file(&mut self) -> String {
        let closed: Vec<String> =
            self.model.flat.keys().filter(|at| self.model.closed_file_blocks(at).is_ok()).cloned().collect();
        if closed.is_empty() || self.random.once_in(5) { self.path() } else { self.random.pick(&closed) }
    }

    fn coin_flip(&mut self) -> bool {
        self.random.once_in(2)
    }

    fn random_op(&mut self) -> (&'static str, Op) {
        let at = path(&self.path());
        let holder = self.random.pick(&["w", "v"]).to_owned();
        match self.random.below(17) {
            0..=3 => (
                "create",
                Op::Create {
                    path: at,
                    holder,
                    replication: Some(1),
                    block_size: None,
                    overwrite: self.coin_flip(),
                    make_parents: self.coin_flip(),
                    mode: None,
                    on_abandon: OnAbandon::Close,
                },
            ),
            4 => ("append", Op::Append { path: at, holder }),
            5..=7 => ("mkdir", Op::Mkdir { path: at, parents: self.coin_flip(), mode: None }),
            8..=10 => {
                ("rename", Op::Rename { from: at, to: path(&self.path()), overwrite: self.coin_flip() })
            }
            11 | 12 => ("delete", Op::Delete { path: at, recursive: self.random.once_in(3) }),
            13 => {
                let files = (!self.random.once_in(3)).then(|| 2 + self.random.below(9) as u64);
                ("quota", Op::SetQuota { path: at, quota: Quota { files, space: None } })
            }
            14 => {
                let target = path(&self.closed_file());
                let sources = (0..=self.random.below(2)).map(|_| path(&self.closed_file())).collect();
                ("concat", Op::Concat { target, sources })
            }
            _ => ("commit", self.random_commit()),
        }
    }

    fn random_commit(&mut self) -> Op {
        let moves = (0..self.random.below(3))
            .map(|_| CommitMove {
                pieces: (0..self.random.below(3)).map(|_| path(&self.path())).collect(),
                to: path(&self.path()),
            })
            .collect();
        let deletes = (0..self.random.below(2)).map(|_| path(&self.path())).collect();
        let commit_id = format!("c{}", self.random.below(400));
        let epoch = self.model.epoch.saturating_sub(1) + self.random.below(3) as u64;
        let start = Start { epoch, id: StartId(7) };
        Op::Commit { scope: "s".into(), start, commit_id, moves, deletes }
    }

    fn step(&mut self) {
        if self.random.once_in(3) {
            self.write_and_close();
            return;
        }
        let (class, op) = self.random_op();
        let expected = self.model.step(&op);
        let got = self.bench.ask(op.clone());
        self.outcome_counts.entry(class).or_default()[usize::from(got.is_err())] += 1;
        let got = got.map(drop).map_err(|error| error.kind);
        // A commit with several errors may be refused for any of them.
        if matches!(op, Op::Commit { .. }) && got.is_err() && expected.is_err() {
            return;
        }
        assert_eq!(got, expected, "{op:?}\n{:#?}", self.model.flat.keys());
    }

    /// Writes a block to an open file and closes it.
    fn write_and_close(&mut self) {
        let open: Vec<String> = self
            .model
            .flat
            .iter()
            .filter(|(_, entry)| entry.file.as_ref().is_some_and(|file| file.holder.is_some()))
            .map(|(at, _)| at.clone())
            .collect();
        if open.is_empty() {
            return;
        }
        let at = self.random.pick(&open);
        let content = self.model.flat.get_mut(&at).unwrap().file.as_mut().unwrap();
        let holder = content.holder.take().unwrap();
        let file = self.bench.stat(&at).unwrap().file_id;
        let mut commits = Vec::new();
        if self.random.once_in(2) {
            let (block, nodes) = self.bench.add_block_as(file, holder).unwrap();
            let length = self.random.below(BLOCK_BYTES as usize) as u64;
            self.bench.node(nodes[0]).receive(block, length);
            self.bench.beat(0);
            commits.push(BlockLength { block, length });
        }
        self.model.flat.get_mut(&at).unwrap().file.as_mut().unwrap().blocks.extend(&commits);
        let close = Op::Close { file, holder: holder.into(), commits, rename_to: None, overwrite: false };
        assert_eq!(self.bench.ask(close).unwrap(), Outcome::File(file));
    }

    fn compare(&self) {
        let mut seen = 0;
        let mut folders = vec!["/".to_owned()];
        while let Some(folder) = folders.pop() {
            let (entries, more) = self.bench.state.list(&path(&folder), "", usize::MAX).unwrap();
            assert!(!more);
            for entry in entries {
                seen += 1;
                let at = entry.path.as_str();
                let expected = &self.model.flat[at];
                assert_eq!(expected.file.is_none(), entry.is_dir, "{at}");
                if let Some(file) = &expected.file {
                    let length: u64 = file.blocks.iter().map(|block| block.length).sum();
                    let is = (entry.length, entry.open, entry.blocks as usize);
                    assert_eq!(is, (length, file.holder.is_some(), file.blocks.len()), "{at}");
                } else {
                    folders.push(at.to_owned());
                    let usage = self.bench.state.usage(&entry.path).unwrap();
                    assert_eq!(usage.files + usage.dirs + 1, self.model.entries_in(at));
                }
            }
        }
        assert_eq!(seen, self.model.flat.len());
    }
}

#[test]
fn random_operations_match_the_model() {
    let mut done: BTreeMap<&str, [u32; 2]> = BTreeMap::new();
    for seed in 0..40 {
        let bench = Bench::with_nodes(1);
        let mut play = RandomModel {
            bench,
            model: Model::default(),
            random: Random(seed),
            outcome_counts: BTreeMap::new(),
        };
        for step in 0..400 {
            play.step();
            if step % 10 == 0 {
                play.compare();
            }
        }
        play.compare();
        let snapshot_at = play.random.below(play.bench.records.len());
        let mut early = crate::namenode::Namespace::new("c1");
        play.bench.records[..snapshot_at].iter().for_each(|record| early.apply(record).unwrap());
        let mut late = super::replay::save_and_load_snapshot(&early);
        play.bench.records[snapshot_at..].iter().for_each(|record| late.apply(record).unwrap());
        assert_eq!(&late, play.bench.state.namespace());
        for (class, [ok, refused]) in play.outcome_counts {
            let sum = done.entry(class).or_default();
            sum[0] += ok;
            sum[1] += refused;
        }
    }
    println!("{done:?}");
    assert!(
        done.values().all(|[ok, refused]| *ok > 20 && *refused > 20),
        "an operation succeeded or was refused too rarely: {done:?}"
    );
}
