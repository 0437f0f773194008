//! The hosts file: the machines of a cluster and their roles.
//!
//! A line is `HOST ROLE [rack=NAME] [addr=ADDRESS]`. The default rack is `default`, the default
//! address is the name of the host. Empty lines, and text after a `#`, are ignored.

use anyhow::{Context, Result};
use std::{fs, path::Path};
use view::output::Usage;

/// The role of a machine, which determines its daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineRole {
    /// NameNode and JobTracker.
    Master,
    /// DataNode and TaskTracker.
    Node,
}

impl MachineRole {
    /// Returns the daemons of this role, in the order of their start.
    pub fn daemons(self) -> [&'static str; 2] {
        match self {
            Self::Master => ["namenode", "jobtracker"],
            Self::Node => ["datanode", "tasktracker"],
        }
    }
}

/// A machine of a cluster: one line of the hosts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The name for the remote shell, and the name of the node.
    pub name: String,
    /// The role, which determines its daemons.
    pub role: MachineRole,
    pub rack: String,
    /// The address at which other machines reach it.
    pub addr: String,
}

impl Host {
    /// Returns the line of this host in the file.
    pub fn line(&self) -> String {
        let role = if self.role == MachineRole::Master { "master" } else { "node" };
        let rack = if self.rack == "default" { String::new() } else { format!(" rack={}", self.rack) };
        let addr = if self.addr == self.name { String::new() } else { format!(" addr={}", self.addr) };
        format!("{} {role}{rack}{addr}\n", self.name)
    }
}

/// The machines of a cluster: one master or several, and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// All machines, in the order of the hosts file.
    pub all: Vec<Host>,
}

impl Hosts {
    /// Reads a hosts file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).map_err(|(line, why)| Usage(format!("{}:{line}: {why}", path.display())).into())
    }

    /// Parses the text of a hosts file. An error has the number of its line.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut all: Vec<Host> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let fields: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let Some((name, rest)) = fields.split_first() else { continue };
            let host = parse_host(name, rest).map_err(|why| (at + 1, why))?;
            if all.iter().any(|known| known.name == host.name) {
                return Err((at + 1, format!("{name} is listed twice: use one line per machine")));
            }
            all.push(host);
        }
        if !all.iter().any(|host| host.role == MachineRole::Master) {
            return Err((
                text.lines().count().max(1),
                "no machine is a master: add a line `HOST master`".into(),
            ));
        }
        Ok(Self { all })
    }
}

fn parse_host(name: &str, rest: &[&str]) -> Result<Host, String> {
    check_host(name)?;
    let (role, options) = match rest {
        ["master", options @ ..] => (MachineRole::Master, options),
        ["node", options @ ..] => (MachineRole::Node, options),
        [other, ..] => return Err(format!("{other:?} is not a role: use master or node")),
        [] => return Err(format!("{name} has no role: add master or node")),
    };
    let mut host = Host { name: name.into(), role, rack: "default".into(), addr: name.into() };
    for option in options {
        match option.split_once('=') {
            Some(("rack", rack)) => {
                check_host(rack)?;
                host.rack = rack.into();
            }
            Some(("addr", addr)) => {
                check_addr(addr)?;
                host.addr = addr.into();
            }
            _ => return Err(format!("{option:?} is unknown: use rack=NAME or addr=ADDRESS")),
        }
    }
    Ok(host)
}

/// Checks a name. Names are also words of remote shell commands, so special characters are refused.
pub fn check_host(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
        return Err(format!("{name:?} is not a valid name: use letters, digits, dots, hyphens, underscores"));
    }
    Ok(())
}

/// Checks a name or an address. A text of digits and dots must be four numbers up to 255.
pub fn check_addr(addr: &str) -> Result<(), String> {
    check_host(addr)?;
    let number = addr.chars().all(|c| c.is_ascii_digit() || c == '.');
    if number && addr.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(format!("{addr:?} is not an address: use four numbers up to 255, or a name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lines_are_parsed() {
        let text = "# a cluster\nm1 master addr=10.0.0.1\n\nn1 node rack=r1   # the first\nn2 node\n";
        let hosts = Hosts::parse(text).unwrap();
        let names: Vec<_> =
            hosts.all.iter().map(|host| (&host.name[..], &host.rack[..], &host.addr[..])).collect();
        assert_eq!(names, [("m1", "default", "10.0.0.1"), ("n1", "r1", "n1"), ("n2", "default", "n2")]);
        let again: String = hosts.all.iter().map(Host::line).collect();
        assert_eq!(Hosts::parse(&again).unwrap(), hosts);
    }

    /// Damages the text of hosts files at random, with a fixed seed. Checks that each text is
    /// refused or can be written and parsed again without a difference.
    #[test]
    fn damaged_file_is_refused_or_round_trips() {
        let good = b"# a cluster\nm1 master addr=10.0.0.1\n\nn1 node rack=r1   # the first\nn2 node\n";
        let (mut state, mut read) = (17_u64, 0);
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound.max(1)
        };
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..=below(4) {
                let at = below(bytes.len());
                match below(4) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, b" \n#=.-m\xff"[below(8)]),
                    2 if at < bytes.len() => bytes[at] = below(256) as u8,
                    _ => drop(bytes.drain(at..(at + below(9)).min(bytes.len()))),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            match Hosts::parse(&text) {
                Ok(hosts) => {
                    read += 1;
                    let again: String = hosts.all.iter().map(Host::line).collect();
                    assert_eq!(Hosts::parse(&again).as_ref(), Ok(&hosts), "{text:?}");
                }
                Err((line, _)) => {
                    assert!((1..=text.lines().count().max(1)).contains(&line), "{text:?}: {line}");
                }
            }
        }
        println!("20000 damaged hosts files, {read} of them read");
    }

    #[test]
    fn errors_name_the_line() {
        let refused = |text: &str| Hosts::parse(text).unwrap_err();
        assert_eq!(refused("m master\nn1 slave").0, 2);
        assert_eq!(refused("m master\nn1").1, "n1 has no role: add master or node");
        assert_eq!(refused("m master\nm node"), (2, "m is listed twice: use one line per machine".into()));
        assert_eq!(refused("n node\n"), (1, "no machine is a master: add a line `HOST master`".into()));
        for bad in [
            "-oProxyCommand=x master",
            "a;b master",
            "$(x) master",
            "m master rack=a/b",
            "m master x=1",
            "m master addr=999.1.1.1",
        ] {
            assert_eq!(refused(bad).0, 1, "{bad}");
        }
    }
}
