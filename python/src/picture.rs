//! Draws a graph in the DOT language as SVG.

use std::panic::catch_unwind;

use layout::backends::svg::SVGWriter;
use layout::core::format::{ClipHandle, RenderBackend};
use layout::core::geometry::Point;
use layout::core::style::StyleAttr;
use layout::gv::{DotParser, GraphBuilder};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Space between what is drawn and the edge of the picture.
const MARGIN: f64 = 10.;

/// Draws a graph in the DOT language as SVG.
#[pyfunction]
pub(crate) fn draw(py: Python<'_>, dot: &str) -> PyResult<String> {
    py.detach(|| {
        catch_unwind(|| {
            let graph = DotParser::new(dot).process()?;
            let mut builder = GraphBuilder::new();
            builder.visit_graph(&graph);
            let mut canvas = Canvas { svg: SVGWriter::new(), from: Point::splat(f64::MAX), to: Point::zero() };
            builder.get().do_it(false, false, false, &mut canvas);
            Ok(canvas.finish())
        })
        .unwrap_or_else(|_| Err("the layout failed".into()))
    })
    .map_err(|error: String| PyValueError::new_err(format!("cannot draw this graph: {error}")))
}

/// What is drawn, and where the outermost of it is. `SVGWriter` takes a line of text to be as high as it is long, and leaves
/// the background to the page, where black on black cannot be read.
struct Canvas {
    svg: SVGWriter,
    from: Point,
    to: Point,
}

impl Canvas {
    fn has(&mut self, center: Point, size: Point) {
        self.from = Point::new(self.from.x.min(center.x - size.x / 2.), self.from.y.min(center.y - size.y / 2.));
        self.to = Point::new(self.to.x.max(center.x + size.x / 2.), self.to.y.max(center.y + size.y / 2.));
    }

    fn finish(&self) -> String {
        let svg = self.svg.finalize();
        let Some((head, drawn)) = svg.split_once("<svg ").and_then(|(head, svg)| Some((head, svg.split_once('>')?.1)))
        else {
            return svg;
        };
        let (x, y) = ((self.from.x - MARGIN).floor(), (self.from.y - MARGIN).floor());
        let (width, height) = ((self.to.x + MARGIN - x).ceil(), (self.to.y + MARGIN - y).ceil());
        format!(
            "{head}<svg width=\"{width}\" height=\"{height}\" viewBox=\"{x} {y} {width} {height}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n\
             <rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"white\"/>{drawn}"
        )
    }
}

impl RenderBackend for Canvas {
    fn draw_rect(&mut self, xy: Point, size: Point, look: &StyleAttr, other: Option<String>, clip: Option<ClipHandle>) {
        self.has(Point::new(xy.x + size.x / 2., xy.y + size.y / 2.), size);
        self.svg.draw_rect(xy, size, look, other, clip);
    }

    fn draw_line(&mut self, start: Point, stop: Point, look: &StyleAttr, other: Option<String>) {
        self.has(start, Point::zero());
        self.has(stop, Point::zero());
        self.svg.draw_line(start, stop, look, other);
    }

    fn draw_circle(&mut self, xy: Point, size: Point, look: &StyleAttr, other: Option<String>) {
        self.has(xy, size);
        self.svg.draw_circle(xy, size, look, other);
    }

    fn draw_text(&mut self, xy: Point, text: &str, look: &StyleAttr) {
        #[expect(clippy::cast_precision_loss, reason = "a few letters")]
        let [longest, lines, font] =
            [text.lines().map(|line| line.chars().count()).max().unwrap_or(0), text.lines().count(), look.font_size]
                .map(|number| number as f64);
        self.has(xy, Point::new(longest * font * 0.6, lines * font)); // a letter is narrower than that
        self.svg.draw_text(xy, text, look);
    }

    fn draw_arrow(
        &mut self,
        path: &[(Point, Point)],
        dashed: bool,
        head: (bool, bool),
        look: &StyleAttr,
        other: Option<String>,
        text: &str,
    ) {
        // A curve stays between its points and the points that bend it.
        for (point, bend) in path {
            self.has(*point, Point::zero());
            self.has(*bend, Point::zero());
        }
        self.svg.draw_arrow(path, dashed, head, look, other, text);
    }

    fn create_clip(&mut self, xy: Point, size: Point, rounded: usize) -> ClipHandle {
        self.svg.create_clip(xy, size, rounded)
    }
}
