//! A peer: fio on the same file, with io_uring and fixed buffers, and what it reports.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use railring::topology::CpuSet;
use serde_json::Value;

/// One job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) file: &'a Path,
    pub(super) cpus: &'a CpuSet,
    pub(super) pattern: &'static str,
    pub(super) block_bytes: u64,
    pub(super) depth: usize,
    pub(super) is_direct: bool,
    pub(super) time: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) reads_per_s: f64,
    pub(super) bytes_per_s: f64,
    pub(super) cpu_s_per_gib: f64,
    /// From submission to completion.
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
}

/// Its version, or why there is none.
pub(super) fn version() -> Result<String> {
    let output = Command::new("fio").arg("--version").output().context("fio is not installed")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(super) fn run(job: &Job<'_>) -> Result<Report> {
    let mut command = Command::new("fio");
    command.args(["--name=peer", "--readonly", "--ioengine=io_uring", "--fixedbufs=1"]);
    command.args(["--registerfiles=1", "--time_based=1", "--norandommap=1", "--randrepeat=0"]);
    command.args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99"]);
    command.args(["--output-format=json", "--thread=1"]);
    command.arg(format!("--filename={}", job.file.display().to_string().replace(':', "\\:")));
    command.arg(format!("--rw={}", job.pattern));
    command.arg(format!("--bs={}", job.block_bytes));
    command.arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--direct={}", u8::from(job.is_direct)));
    command.arg(format!("--runtime={}ms", job.time.as_millis().max(1)));
    command.arg(format!("--cpus_allowed={}", job.cpus));
    let output = command.stdin(Stdio::null()).output().context("fio is not installed")?;
    if !output.status.success() {
        let said = [&output.stderr[..], b" ", &output.stdout[..]].concat();
        let said = String::from_utf8_lossy(&said);
        let first = said.trim().lines().next().unwrap_or("it said nothing");
        bail!("fio ended with {}: {first}", output.status);
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<Report> {
    // Remarks may stand before the JSON.
    let start = text.find('{').context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(&text[start..]).context("fio's JSON")?;
    let job = &value["jobs"][0];
    let number = |value: &Value, what: &str| {
        value.as_f64().with_context(|| format!("fio's JSON has no {what}"))
    };
    let read = &job["read"];
    let bytes = number(&read["io_bytes"], "io_bytes")?;
    let percent = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    let seconds = number(&job["job_runtime"], "job_runtime")? / 1e3;
    let percentiles = &read["lat_ns"]["percentile"];
    Ok(Report {
        reads_per_s: number(&read["iops"], "iops")?,
        bytes_per_s: number(&read["bw_bytes"], "bw_bytes")?,
        cpu_s_per_gib: percent / 100.0 * seconds / (bytes.max(1.0) / (1u64 << 30) as f64),
        p50_ns: number(&percentiles["50.000000"], "50th percentile")?,
        p99_ns: number(&percentiles["99.000000"], "99th percentile")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = r#"fio: a remark
            {"jobs": [{"usr_cpu": 10.0, "sys_cpu": 40.0, "job_runtime": 2000,
            "read": {"io_bytes": 1073741824, "iops": 100.5, "bw_bytes": 5,
            "lat_ns": {"percentile": {"50.000000": 7, "99.000000": 9}}}}]}"#;
        let report = parse(text).expect("complete");
        assert_eq!((report.reads_per_s, report.cpu_s_per_gib), (100.5, 1.0));
        assert_eq!((report.p50_ns, report.p99_ns), (7.0, 9.0));
        assert!(parse("nothing").is_err());
        assert!(parse("{}").is_err());
    }
}
