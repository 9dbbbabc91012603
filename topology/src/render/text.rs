//! The tree for people: width respected, colours only when asked for.

use super::layout::{Branch, Kind, Place, node_line, places};
use crate::machine::{CoreKind, Machine};
use crate::plan::{Plan, RailPath, RailPlacement, ReasonCode};
use crate::units::{bits_text, plural};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether the text has colours. Decide by whether it goes to a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// No escape sequences.
    #[default]
    Never,
    /// ANSI escape sequences.
    Always,
}

/// How the text is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns that may be used; lines are cut or wrapped to fit.
    pub width: usize,
    /// Whether there are colours.
    pub colour: Colour,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { width: 100, colour: Colour::Never }
    }
}

/// Narrower than this nothing can be laid out.
const WIDTH_MIN: usize = 40;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[0m";

pub(super) struct Page {
    width: usize,
    colour: Colour,
    out: String,
}

impl Page {
    pub(super) fn new(options: TextOptions) -> Self {
        let width = options.width.max(WIDTH_MIN);
        Self { width, colour: options.colour, out: String::new() }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    fn paint(&self, style: &str, text: &str) -> String {
        match self.colour {
            Colour::Always if !text.is_empty() => format!("{style}{text}{RESET}"),
            _ => text.to_owned(),
        }
    }

    /// A line of pieces with a style each, cut at the width.
    fn line(&mut self, pieces: &[(&str, &str)]) {
        let mut left = self.width;
        for (style, piece) in pieces {
            let text = printable(piece);
            let cut = cut(&text, left);
            left -= cut.width().min(left);
            let painted = if style.is_empty() { cut.clone() } else { self.paint(style, &cut) };
            self.out.push_str(&painted);
            if cut != text {
                break;
            }
        }
        while self.out.ends_with(' ') {
            self.out.pop();
        }
        self.out.push('\n');
    }

    pub(super) fn heading(&mut self, text: &str) {
        if !self.out.is_empty() {
            self.out.push('\n');
        }
        self.line(&[(BOLD, text)]);
    }

    /// Words broken over lines, the later ones indented.
    pub(super) fn wrapped(&mut self, first: &str, indent: usize, text: &str) {
        let mut line = first.to_owned();
        let mut empty = true;
        for word in printable(text).split(' ').filter(|word| !word.is_empty()) {
            if !empty && line.width() + 1 + word.width() > self.width {
                self.line(&[("", &line)]);
                line = " ".repeat(indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(&[("", &line)]);
    }
}

/// Control characters in names from foreign trees must not reach the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The text cut to a number of columns, with `…` where something is missing.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        cut.push(c);
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// The machine as a tree; with a plan also its rails, their pollers and the reasons, what is no
/// rail, and the warnings.
#[must_use]
pub fn text(machine: &Machine, plan: Option<&Plan>, options: TextOptions) -> String {
    let mut page = Page::new(options);
    head(&mut page, machine);
    let places = places(machine, plan);
    for (at, place) in places.iter().enumerate() {
        place_lines(&mut page, machine, place, at + 1 == places.len());
    }
    if let Some(plan) = plan {
        rails(&mut page, plan);
        reasons(&mut page, plan);
        passed_over(&mut page, plan);
        warnings(&mut page, plan);
    }
    unknowns(&mut page, machine);
    page.finish()
}

fn head(page: &mut Page, machine: &Machine) {
    let model = machine.model.as_deref().unwrap_or("machine");
    let kernel = machine.kernel.as_ref().map_or(String::new(), |k| format!(", Linux {k}"));
    let sources = [&machine.source.sysfs, &machine.source.hwloc];
    let sources: Vec<&str> = sources.into_iter().flatten().map(String::as_str).collect();
    let from = if machine.source.live {
        String::new()
    } else {
        format!(" (from {})", sources.join(" and "))
    };
    page.heading(&format!("{model}{kernel}{from}"));
    let online = &machine.cpus.online;
    let offline = match machine.cpus.offline.len() {
        0 => String::new(),
        _ => format!(", offline {}", machine.cpus.offline),
    };
    page.wrapped(
        "",
        2,
        &format!(
            "{} online ({online}) in {} and {}{offline}",
            plural(online.len(), "cpu"),
            plural(machine.cores.len(), "core"),
            plural(machine.nodes.len(), "memory node"),
        ),
    );
    let allowed = machine.allowed();
    if allowed != *online {
        page.wrapped("", 2, &format!("this process may use cpus {allowed}"));
    }
    for (what, cpus) in kinds(machine) {
        page.wrapped("", 2, &format!("{what} cores: cpus {cpus}"));
    }
    let placed = machine.nodes.iter().fold(crate::CpuSet::new(), |all, n| all.union(&n.cpus));
    let homeless = online.difference(&placed);
    if !machine.nodes.is_empty() && !homeless.is_empty() {
        page.wrapped("", 2, &format!("on no memory node that is online: cpus {homeless}"));
    }
    if !machine.cpus.isolated.is_empty() {
        page.wrapped(
            "",
            2,
            &format!("isolated from the scheduler: cpus {}", machine.cpus.isolated),
        );
    }
}

fn kinds(machine: &Machine) -> Vec<(&'static str, crate::CpuSet)> {
    let of = |kind| {
        let cores = machine.cores.iter().filter(move |core| core.kind == kind);
        cores.fold(crate::CpuSet::new(), |cpus, core| cpus.union(&core.cpus))
    };
    let kinds =
        [("performance", of(CoreKind::Performance)), ("efficiency", of(CoreKind::Efficiency))];
    kinds.into_iter().filter(|(_, cpus)| !cpus.is_empty()).collect()
}

fn place_lines(page: &mut Page, machine: &Machine, place: &Place, last: bool) {
    let (elbow, bar) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
    match place.node {
        Some(id) => {
            let (name, rest) = (format!("node {id}"), format!(": {}", node_line(machine, id)));
            page.line(&[("", elbow), (BOLD, &name), ("", &rest)]);
        }
        None => page.line(&[("", elbow), (BOLD, "no single node known")]),
    }
    branch_lines(page, &place.branches, bar);
}

fn branch_lines(page: &mut Page, branches: &[Branch], indent: &str) {
    for (at, branch) in branches.iter().enumerate() {
        let last = at + 1 == branches.len();
        let (elbow, bar) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let lead = format!("{indent}{elbow}");
        let style = match branch.kind {
            Kind::Host | Kind::Bridge | Kind::Note => DIM,
            _ if !branch.usable => DIM,
            _ => "",
        };
        let detail = match branch.detail.as_str() {
            "" => String::new(),
            detail => format!("  {detail}"),
        };
        let rails: Vec<String> = branch.rails.iter().map(u16::to_string).collect();
        let rail = match rails.as_slice() {
            [] => String::new(),
            [one] => format!("  rail {one} <="),
            several => format!("  rails {} <=", several.join(", ")),
        };
        // The rail is what the reader looks for, so the detail is what is cut.
        let room = page.width.saturating_sub(lead.width() + branch.label.width() + rail.width());
        let detail = cut(&detail, room);
        page.line(&[("", &lead), (style, &branch.label), (style, &detail), (GREEN, &rail)]);
        branch_lines(page, &branch.children, &format!("{indent}{bar}"));
    }
}

pub(super) fn rate(bits: Option<u64>) -> String {
    bits.map_or_else(|| "?".to_owned(), bits_text)
}

pub(super) fn path_text(rail: &RailPlacement) -> String {
    match &rail.path {
        RailPath::Rdma { gid, net, .. } => {
            let net = net.as_ref().map_or(String::new(), |net| format!(" on {net}"));
            let gid = gid.as_ref().map_or(String::new(), |gid| format!(", gid {}", gid.index));
            format!("RDMA{net}{gid}")
        }
        RailPath::Tcp { source, .. } => match source {
            Some(source) => format!("TCP from {source}"),
            None => "TCP".to_owned(),
        },
        RailPath::File { disk, .. } => match disk {
            Some(disk) => format!("file on {disk}"),
            None => "file".to_owned(),
        },
        RailPath::Other { spec } => spec.clone(),
    }
}

fn or_unknown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

fn rails(page: &mut Page, plan: &Plan) {
    page.heading(&format!("Rails: {}", plan.rails.len()));
    if plan.rails.is_empty() {
        return;
    }
    let head = ["rail", "name", "node", "poller", "cpu", "memory", "at most", "path"];
    let mut rows: Vec<[String; 8]> = vec![head.map(str::to_owned)];
    rows.extend(plan.rails.iter().map(|rail| {
        let poller = plan.poller_of(rail);
        let cpu = poller.map_or("?".to_owned(), |poller| match poller.cpu {
            Some(cpu) => cpu.to_string(),
            None => "any".to_owned(),
        });
        [
            rail.number.to_string(),
            rail.name.clone(),
            or_unknown(rail.node),
            rail.poller.to_string(),
            cpu,
            or_unknown(rail.memory_node),
            rate(rail.bits_per_second),
            path_text(rail),
        ]
    }));
    let widths: Vec<usize> =
        (0..8).map(|c| rows.iter().map(|row| row[c].width()).max().unwrap_or(0)).collect();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())))
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        page.line(&[(if at == 0 { DIM } else { "" }, &line)]);
    }
    let together = match (plan.expected.bits_per_second, plan.expected.sum_bits_per_second) {
        (Some(total), Some(sum)) if total < sum => format!(
            "together at most {}, not {}, as some share a path (see the warnings)",
            bits_text(total),
            bits_text(sum)
        ),
        (Some(total), _) => format!("together at most {}", bits_text(total)),
        (None, _) => {
            let unknown = plan.expected.unknown_rails.join(", ");
            format!("what they carry together is unknown, as nothing tells the rate of {unknown}")
        }
    };
    page.wrapped("", 2, &together);
}

fn reasons(page: &mut Page, plan: &Plan) {
    if plan.rails.is_empty() {
        return;
    }
    page.heading("Why");
    for rail in &plan.rails {
        let order = [
            ReasonCode::Override,
            ReasonCode::Usable,
            ReasonCode::Locality,
            ReasonCode::Poller,
            ReasonCode::Shared,
            ReasonCode::Memory,
        ];
        let texts: Vec<&str> =
            order.into_iter().flat_map(|code| rail.reasons_about(code)).collect();
        let first = format!("rail {}: ", rail.number);
        page.wrapped(&first, 4, &texts.join("; "));
    }
}

fn passed_over(page: &mut Page, plan: &Plan) {
    if plan.passed_over.is_empty() {
        return;
    }
    page.heading("Not rails");
    for passed in &plan.passed_over {
        page.wrapped("", 4, &format!("{}: {}", passed.name, passed.why));
    }
}

fn warnings(page: &mut Page, plan: &Plan) {
    if plan.warnings.is_empty() {
        return;
    }
    let title = format!("Warnings: {}", plan.warnings.len());
    let title = page.paint(YELLOW, &title);
    page.out.push('\n');
    page.out.push_str(&title);
    page.out.push('\n');
    for warning in &plan.warnings {
        page.wrapped("- ", 2, &format!("{}: {}", warning.about, warning.text));
        page.wrapped("  do: ", 6, &warning.todo);
    }
}

fn unknowns(page: &mut Page, machine: &Machine) {
    if !machine.disagreements.is_empty() {
        page.heading("Sources disagree");
        for d in &machine.disagreements {
            let text = format!("{}: taken {}; passed over {}", d.about, d.taken, d.passed_over);
            page.wrapped("- ", 2, &text);
        }
    }
    if !machine.unknowns.is_empty() {
        let count = plural(machine.unknowns.len(), "file");
        page.heading(&format!("{count} told nothing (--json lists them with why)"));
    }
}
