//! Hosts of this run's own on one machine: network namespaces, each behind a link of its own to a router, so
//! that links can be cut, one way too, and made slow.
//!
//! Host 0 is for the clients, which are threads of this process; each other one is for a server. All is gone
//! with the processes that hold it. It takes the superuser, or `unshare --user --map-root-user` around it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tercel::Address;

use crate::fail::Failure;
use crate::process::OwnProcess;

/// The hosts and the router between them.
pub struct Hosts {
    router: Host,
    hosts: Vec<Host>,
}

/// A network namespace, by the process that holds it.
pub struct Host(OwnProcess);

/// The state of the link of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Packets pass, both ways.
    Whole,
    /// None does.
    Cut,
    /// Those to the host are lost.
    CutIn,
    /// Those from the host are lost.
    CutOut,
    /// Those to the host pass by a rate of ten megabits a second.
    Slow,
}

impl Hosts {
    /// Makes one host for the clients and `n` more, and moves this thread into the first, with all threads
    /// that it begins.
    ///
    /// # Errors
    /// If the system does not let this process do that.
    pub fn new(n: usize) -> Result<Hosts, Failure> {
        let router = Host::new()?;
        let hosts = (0..=n).map(|_| Host::new()).collect::<Result<Vec<_>, _>>()?;
        router.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], "")?;
        let mut links = String::from("link set lo up\n");
        for (h, host) in hosts.iter().enumerate() {
            let holder = host.0.id();
            links += &format!("link add m{h} type veth peer name eth0 netns {holder}\n");
            links += &format!("addr add 10.77.{h}.1/30 dev m{h}\nlink set m{h} up\n");
        }
        // Rules in front of it can lose packets.
        links += "rule add pref 100 lookup local\nrule del pref 0\n";
        router.ip(&links)?;
        for (h, host) in hosts.iter().enumerate() {
            let own = format!(
                "link set lo up\nlink set eth0 up\naddr add 10.77.{h}.2/30 dev eth0\n\
                 route add default via 10.77.{h}.1\n"
            );
            host.ip(&own)?;
        }
        hosts[0].enter()?;
        Ok(Hosts { router, hosts })
    }

    /// The host of a server, counted from 0.
    pub fn of(&self, i: usize) -> &Host {
        &self.hosts[i + 1]
    }

    /// The address of a server.
    ///
    /// # Errors
    /// Never: it is one.
    pub fn address(&self, i: usize) -> Result<Address, Failure> {
        format!("10.77.{}.2:7117", i + 1)
            .parse()
            .map_err(|e: tercel::AddressError| Failure::new(e.to_string()))
    }

    /// Changes the link of a server's host, which was [`Link::Whole`], or makes it that again.
    ///
    /// # Errors
    /// If the system cannot do that.
    pub fn set(&self, i: usize, link: Link) -> Result<(), Failure> {
        let h = i + 1;
        let (to, from) = (format!("pref 10 to 10.77.{h}.2"), format!("pref 11 from 10.77.{h}.2"));
        let device = format!("m{h}");
        match link {
            Link::Cut => self.router.ip(&format!("rule add {to} blackhole\nrule add {from} blackhole\n")),
            Link::CutIn => self.router.ip(&format!("rule add {to} blackhole\n")),
            Link::CutOut => self.router.ip(&format!("rule add {from} blackhole\n")),
            Link::Slow => {
                let slow = "root tbf rate 10mbit burst 16k latency 100ms";
                let words = ["qdisc", "replace", "dev", &device].into_iter().chain(slow.split(' '));
                self.router.run("tc", &words.collect::<Vec<_>>(), "")
            }
            Link::Whole => {
                // Of what there is not, nothing is to be undone.
                let _ = self.router.quietly(&format!(
                    "ip rule del {to}; ip rule del {from}; tc qdisc del dev {device} root"
                ));
                Ok(())
            }
        }
    }
}

impl Host {
    fn new() -> Result<Host, Failure> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo listening on nothing; exec cat"]);
        OwnProcess::start(command).map(Host)
    }

    /// Moves this thread to it, with all threads that it begins.
    ///
    /// # Errors
    /// If the system does not let this process do that.
    pub fn enter(&self) -> Result<(), Failure> {
        let space = File::open(format!("/proc/{}/ns/net", self.0.id()))?;
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| std::io::Error::from(e).into())
    }

    /// The command line that begins a program on it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.id().to_string(), "--"]).arg(program);
        command
    }

    fn ip(&self, lines: &str) -> Result<(), Failure> {
        self.run("ip", &["-batch", "-"], lines)
    }

    fn quietly(&self, script: &str) -> Result<(), Failure> {
        self.run("sh", &["-c", &format!("exec 2>&-; {script}")], "")
    }

    fn run(&self, program: &str, args: &[&str], input: &str) -> Result<(), Failure> {
        let mut child = self.command(program).args(args).stdin(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        match child.wait()?.success() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "`{program}` failed in a network of this run's own; it said why above"
            ))),
        }
    }
}
