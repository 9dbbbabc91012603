//! The drawing for reports: a box per memory node with its cores, its PCI tree and its rails.
//!
//! ```text
//! +- node 0: 252 GiB ------------------------------------------------+
//! | cores        | PCI tree with link speeds      | rails            |
//! | [0][1][2]    | pci0000:20                     |                  |
//! | [3][P0][5]   |  └ 21:00.0  16 GT/s x16        |                  |
//! |              |     └ mlx5_0:1 active ---------|- rail 0, 200 Gb/s|
//! +-------------------------------------------------------------------+
//! ```

use super::layout::{Branch, Kind, Place, node_line, places};
use super::text::rate;
use crate::cpuset::CpuSet;
use crate::id::CpuId;
use crate::machine::{Core, CoreKind, Machine};
use crate::plan::{Plan, PollerPlacement, RailPlacement};
use crate::units::plural;

const WIDTH: u32 = 1240;
const MARGIN: u32 = 24;
const ROW: u32 = 24;
const TREE_X: u32 = 340;
const RAILS_X: u32 = 940;
const INDENT: u32 = 18;
const CELL: u32 = 32;
const CELLS_PER_LINE: u32 = 8;
/// Nodes without devices that stand side by side.
const BARE_PER_LINE: usize = 3;
/// Characters of 12 px text between the tree's column and the rails'.
const TREE_CHARS: usize = 92;

/// Colours of pollers, far apart from each other also for the colour-blind (after Okabe and Ito,
/// "Color Universal Design", 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#6a3d9a"];

struct Drawing<'a> {
    machine: &'a Machine,
    plan: Option<&'a Plan>,
    allowed: CpuSet,
    body: String,
    y: u32,
}

/// The machine, and with a plan its rails and pollers, as an SVG document.
#[must_use]
pub fn svg(machine: &Machine, plan: Option<&Plan>) -> String {
    let mut drawing =
        Drawing { machine, plan, allowed: machine.allowed(), body: String::new(), y: MARGIN };
    drawing.title();
    let places = places(machine, plan);
    let mut rest = places.as_slice();
    while let Some(first) = rest.first() {
        let bare = rest.iter().take_while(|place| place.branches.is_empty()).count();
        let count = bare.min(BARE_PER_LINE);
        if count == 0 {
            drawing.place(first);
        } else {
            drawing.bare(&rest[..count]);
        }
        rest = &rest[count.max(1)..];
    }
    drawing.legend();
    drawing.warnings();
    let height = drawing.y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
        drawing.body
    )
}

/// Text for XML; control characters are not allowed there at all.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

fn shorten(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn colour_of(poller: &PollerPlacement) -> &'static str {
    COLOURS[usize::from(poller.number) % COLOURS.len()]
}

fn core_lines(cores: &[Core]) -> u32 {
    (cores.len() as u32).div_ceil(CELLS_PER_LINE)
}

/// Rows a tree takes.
fn rows(branches: &[Branch]) -> u32 {
    branches.iter().map(|branch| 1 + rows(&branch.children)).sum()
}

impl Drawing<'_> {
    fn push(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    fn text(&mut self, x: u32, y: u32, attributes: &str, text: &str) {
        let element = format!("<text x=\"{x}\" y=\"{y}\" {attributes}>{}</text>", escape(text));
        self.push(&element);
    }

    fn line(&mut self, points: [u32; 4], stroke: &str) {
        let [x1, y1, x2, y2] = points;
        self.push(&format!("<path d=\"M{x1} {y1}L{x2} {y2}\" stroke=\"{stroke}\" fill=\"none\"/>"));
    }

    fn title(&mut self) {
        let machine = self.machine;
        let model = machine.model.as_deref().unwrap_or("machine");
        let kernel = machine.kernel.as_ref().map_or(String::new(), |k| format!(", Linux {k}"));
        let title = shorten(&format!("{model}{kernel}"), 90);
        self.y += 16;
        self.text(MARGIN, self.y, "font-size=\"18\" font-weight=\"bold\"", &title);
        let mut facts = vec![format!(
            "{}, {}, {}",
            plural(machine.cpus.online.len(), "cpu"),
            plural(machine.cores.len(), "core"),
            plural(machine.nodes.len(), "memory node")
        )];
        if let Some(plan) = self.plan {
            let rails = plural(plan.rails.len(), "rail");
            facts.push(format!("{rails}, {}", plural(plan.pollers.len(), "poller")));
            if plan.expected.bits_per_second.is_some() && !plan.rails.is_empty() {
                let together = rate(plan.expected.bits_per_second);
                facts.push(format!("together at most {together}"));
            }
        }
        self.y += 22;
        self.text(MARGIN, self.y, "fill=\"#555555\"", &facts.join("; "));
        self.y += 14;
    }

    fn cores_of(&self, place: &Place) -> Vec<Core> {
        let Some(node) = place.node.and_then(|id| self.machine.node(id)) else { return Vec::new() };
        let cores = self.machine.cores.iter().filter(|core| core.cpus.intersects(&node.cpus));
        let own = |core: &Core| Core { cpus: core.cpus.intersection(&node.cpus), ..core.clone() };
        cores.map(own).collect()
    }

    fn place(&mut self, place: &Place) {
        let lines = core_lines(&self.cores_of(place)) * (CELL + 4);
        let height = 44 + lines.max(rows(&place.branches) * ROW) + 10;
        self.node_box(place, [MARGIN, WIDTH - 2 * MARGIN, height]);
        let mut row = self.y + 38;
        for branch in &place.branches {
            row = self.branch(branch, TREE_X, row);
        }
        self.y += height + 14;
    }

    /// Nodes without devices, side by side.
    fn bare(&mut self, places: &[Place]) {
        let lines = places.iter().map(|place| core_lines(&self.cores_of(place))).max();
        let height = 44 + lines.unwrap_or(0) * (CELL + 4) + 6;
        let count = BARE_PER_LINE as u32;
        let width = (WIDTH - 2 * MARGIN - (count - 1) * 14) / count;
        for (at, place) in (0_u32..).zip(places) {
            self.node_box(place, [MARGIN + at * (width + 14), width, height]);
        }
        self.y += height + 14;
    }

    /// A node's frame at `[x, width, height]`, its name and its cores.
    fn node_box(&mut self, place: &Place, [x, width, height]: [u32; 3]) {
        let y = self.y;
        self.push(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"8\" \
             fill=\"#f7f8fa\" stroke=\"#9aa4b2\"/>"
        ));
        let (name, about) = match place.node {
            Some(id) => (format!("node {id}"), node_line(self.machine, id)),
            None => {
                let about = "no source tells where these are, or they are on several nodes";
                ("no node".to_owned(), about.to_owned())
            }
        };
        let room = (width as usize - 110) / 7;
        self.text(x + 16, y + 22, "font-size=\"14\" font-weight=\"bold\"", &name);
        self.text(x + 90, y + 22, "fill=\"#555555\"", &shorten(&about, room));
        for (at, core) in (0_u32..).zip(&self.cores_of(place)) {
            let cell_x = x + 16 + at % CELLS_PER_LINE * (CELL + 4);
            let cell_y = y + 38 + at / CELLS_PER_LINE * (CELL + 4);
            self.core(core, cell_x, cell_y);
        }
    }

    /// One core: a cell per hardware thread, filled with the colour of the poller that runs there.
    fn core(&mut self, core: &Core, x: u32, y: u32) {
        let threads = core.cpus.len().max(1) as u32;
        let width = CELL / threads.min(4);
        // Over all cells, so that none hides them.
        let mut labels = Vec::new();
        let outline = match core.kind {
            CoreKind::Efficiency => "stroke=\"#9aa4b2\" stroke-dasharray=\"3 2\"",
            _ => "stroke=\"#5b6573\"",
        };
        for (at, cpu) in core.cpus.iter().enumerate() {
            let at = at as u32;
            let (cell_x, cell_y) = (x + at % 4 * width, y + at / 4 * (CELL / 2));
            let height = if threads > 4 { CELL / 2 } else { CELL };
            let poller = self.poller_on(cpu);
            let fill = match poller {
                Some((colour, _)) => colour,
                None if self.allowed.contains(cpu) => "#ffffff",
                None => "#d9dde3",
            };
            let label = poller.map(|(_, number)| format!("P{number}"));
            self.push(&format!(
                "<rect x=\"{cell_x}\" y=\"{cell_y}\" width=\"{width}\" height=\"{height}\" \
                 fill=\"{fill}\" {outline}><title>cpu {cpu}</title></rect>"
            ));
            let (style, label) = match label {
                Some(label) => ("fill=\"#ffffff\" font-weight=\"bold\"", label),
                None => ("fill=\"#7a8594\"", cpu.to_string()),
            };
            let size = if threads == 2 { 7 } else { 10 };
            // Four threads of a core leave no room for their numbers, and a poller's goes beside
            // it.
            let (label_x, style) = match (threads <= 2, poller) {
                (true, _) => (cell_x + width / 2, style.to_owned()),
                (false, Some((colour, _))) => {
                    (x + CELL / 2 + 3, format!("fill=\"{colour}\" font-weight=\"bold\""))
                }
                (false, None) => continue,
            };
            let attributes = format!("font-size=\"{size}\" text-anchor=\"middle\" {style}");
            labels.push((label_x, cell_y + height / 2 + 3, attributes, label));
        }
        for (x, y, attributes, label) in labels {
            self.text(x, y, &attributes, &label);
        }
    }

    /// The colour and the number of the poller that is bound to `cpu`.
    fn poller_on(&self, cpu: CpuId) -> Option<(&'static str, u16)> {
        let poller = self.plan?.pollers.iter().find(|poller| poller.cpu == Some(cpu))?;
        Some((colour_of(poller), poller.number))
    }

    /// A row of the tree and those below it; returns the next free row.
    fn branch(&mut self, branch: &Branch, x: u32, y: u32) -> u32 {
        let middle = y + ROW / 2;
        let fill = match branch.kind {
            _ if !branch.usable => "#b8c0ca",
            Kind::Host | Kind::Bridge | Kind::Note => "#9aa4b2",
            Kind::Function => "#5b6573",
            Kind::Port => "#0b6e4f",
            Kind::Net => "#2f6db5",
            Kind::Disk => "#8a5a00",
        };
        let (box_x, box_y) = (x, y + 5);
        self.push(&format!(
            "<rect x=\"{box_x}\" y=\"{box_y}\" width=\"10\" height=\"14\" rx=\"2\" \
             fill=\"{fill}\"/>"
        ));
        let ink = if branch.usable { "#1c2733" } else { "#8d97a5" };
        let room = TREE_CHARS.saturating_sub((x - TREE_X) as usize / 6);
        let label = shorten(&branch.label, room);
        let detail = shorten(&branch.detail, room.saturating_sub(label.chars().count() + 1));
        let element = format!(
            "<text x=\"{}\" y=\"{}\" fill=\"{ink}\">{}<tspan dx=\"8\" font-size=\"11\" \
             fill=\"#6b7685\">{}</tspan></text>",
            x + 16,
            middle + 4,
            escape(&label),
            escape(&detail)
        );
        self.push(&element);
        self.rails(branch, x, middle);
        let mut next = y + ROW;
        for child in &branch.children {
            let from = x + 5;
            self.line([from, y + ROW - 5, from, next + ROW / 2], "#c3cad3");
            self.line([from, next + ROW / 2, x + INDENT, next + ROW / 2], "#c3cad3");
            next = self.branch(child, x + INDENT, next);
        }
        next
    }

    fn rails(&mut self, branch: &Branch, x: u32, middle: u32) {
        let Some(plan) = self.plan else { return };
        let rails: Vec<&RailPlacement> =
            plan.rails.iter().filter(|rail| branch.rails.contains(&rail.number)).collect();
        let Some(first) = rails.first() else { return };
        let poller = plan.poller_of(first);
        let colour = poller.map_or("#5b6573", colour_of);
        let text = match rails.as_slice() {
            [one] => self.rail_text(plan, one),
            several => {
                let numbers: Vec<String> =
                    several.iter().map(|rail| rail.number.to_string()).collect();
                format!("rails {}", numbers.join(", "))
            }
        };
        let chars = (branch.label.chars().count() + branch.detail.chars().count()) as u32;
        let from = (x + 30 + chars * 7).min(RAILS_X - 12);
        self.push(&format!(
            "<path d=\"M{from} {middle}L{RAILS_X} {middle}\" stroke=\"{colour}\" \
             stroke-dasharray=\"2 3\"/>"
        ));
        let (top, width) = (middle - ROW / 2 + 2, WIDTH - MARGIN - 12 - RAILS_X);
        let height = ROW - 4;
        self.push(&format!(
            "<rect x=\"{RAILS_X}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"4\" \
             fill=\"{colour}\"/>"
        ));
        let style = "fill=\"#ffffff\" font-size=\"11\"";
        self.text(RAILS_X + 8, middle + 4, style, &shorten(&text, 50));
    }

    fn rail_text(&self, plan: &Plan, rail: &RailPlacement) -> String {
        let mut parts = vec![format!("rail {}", rail.number)];
        if rail.bits_per_second.is_some() {
            parts.push(rate(rail.bits_per_second));
        }
        if let Some(poller) = plan.poller_of(rail) {
            parts.push(match poller.cpu {
                Some(cpu) => format!("poller P{} on cpu {cpu}", poller.number),
                None => format!("poller P{}", poller.number),
            });
            let far =
                poller.cpu.is_some_and(|cpu| !rail.near.is_empty() && !rail.near.contains(cpu));
            if far {
                parts.push("FAR".to_owned());
            }
        }
        parts.join(", ")
    }

    fn legend(&mut self) {
        let mut x = MARGIN;
        let y = self.y;
        let entries: [(&str, &str, &str); 7] = [
            ("#0072b2", "", "poller (one colour each)"),
            ("#ffffff", "stroke=\"#5b6573\"", "cpu this process may use"),
            ("#d9dde3", "stroke=\"#5b6573\"", "other cpu"),
            ("#0b6e4f", "", "RDMA port"),
            ("#2f6db5", "", "network device"),
            ("#8a5a00", "", "disk"),
            ("#b8c0ca", "", "not usable now"),
        ];
        for (fill, extra, label) in entries {
            self.push(&format!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{fill}\" {extra}/>"
            ));
            self.text(x + 18, y + 10, "font-size=\"11\" fill=\"#555555\"", label);
            x += 34 + label.chars().count() as u32 * 7;
        }
        self.y += 30;
    }

    fn warnings(&mut self) {
        let Some(plan) = self.plan.filter(|plan| !plan.warnings.is_empty()) else { return };
        self.y += 8;
        let title = format!("Warnings: {}", plan.warnings.len());
        self.text(MARGIN, self.y, "font-weight=\"bold\" fill=\"#a33b00\"", &title);
        for warning in &plan.warnings {
            for (at, text) in
                wrap(&format!("{}: {}", warning.about, warning.text), 165).iter().enumerate()
            {
                self.y += 17;
                let x = MARGIN + if at == 0 { 0 } else { 12 };
                self.text(x, self.y, "font-size=\"11\"", text);
            }
            for text in wrap(&format!("do: {}", warning.todo), 160) {
                self.y += 15;
                self.text(MARGIN + 12, self.y, "font-size=\"11\" fill=\"#555555\"", &text);
            }
        }
    }
}

fn wrap(text: &str, chars: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("the list starts with a line and only grows");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > chars {
            lines.push(word.to_owned());
            continue;
        }
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines
}
