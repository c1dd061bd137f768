//! Which steps must complete before another step reads or writes a range.

use std::collections::BTreeMap;

use super::{Space, Span};

/// The steps that have accessed a range: its last writer, and the readers since.
#[derive(Clone, Debug, Default)]
struct Cell {
    end: usize,
    writer: Option<u32>,
    readers: Vec<u32>,
}

/// The memory of an operation after the steps so far: disjoint cells, by space and start.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    cells: BTreeMap<(Space, usize), Cell>,
}

impl Hazards {
    /// A step reads a span: it waits for the last writer.
    pub(super) fn read(&mut self, step: u32, span: Span, waits_for: &mut Vec<u32>) {
        self.cover(span);
        for cell in self.cells.range_mut(bounds(span)).map(|(_, cell)| cell) {
            waits_for.extend(cell.writer);
            cell.readers.push(step);
        }
    }

    /// A step writes a span: it waits for the last writer and for all readers since.
    pub(super) fn write(&mut self, step: u32, span: Span, waits_for: &mut Vec<u32>) {
        if span.len == 0 {
            return;
        }
        self.cover(span);
        let starts: Vec<_> = self.cells.range(bounds(span)).map(|(start, _)| *start).collect();
        for start in starts {
            if let Some(cell) = self.cells.remove(&start) {
                waits_for.extend(cell.writer);
                waits_for.extend(cell.readers);
            }
        }
        let cell = Cell { end: span.offset + span.len, writer: Some(step), readers: Vec::new() };
        self.cells.insert((span.space, span.offset), cell);
    }

    /// Splits cells so that the span is a whole number of them.
    fn cover(&mut self, span: Span) {
        if span.len == 0 {
            return;
        }
        let end = span.offset + span.len;
        self.cut(span.space, span.offset);
        self.cut(span.space, end);
        let mut at = span.offset;
        let mut gaps = Vec::new();
        for (&(_, start), cell) in self.cells.range(bounds(span)) {
            if at < start {
                gaps.push((at, start));
            }
            at = cell.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (start, end) in gaps {
            self.cells.insert((span.space, start), Cell { end, ..Cell::default() });
        }
    }

    /// Splits the cell that contains `at` in two.
    fn cut(&mut self, space: Space, at: usize) {
        let Some((_, cell)) = self.cells.range_mut((space, 0)..(space, at)).next_back() else {
            return;
        };
        if cell.end > at {
            let right = cell.clone();
            cell.end = at;
            self.cells.insert((space, at), right);
        }
    }
}

fn bounds(span: Span) -> std::ops::Range<(Space, usize)> {
    (span.space, span.offset)..(span.space, span.offset + span.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: usize, len: usize) -> Span {
        Span { space: Space::Output, offset, len }
    }

    fn read(hazards: &mut Hazards, step: u32, span: Span) -> Vec<u32> {
        let mut waits = Vec::new();
        hazards.read(step, span, &mut waits);
        waits
    }

    fn write(hazards: &mut Hazards, step: u32, span: Span) -> Vec<u32> {
        let mut waits = Vec::new();
        hazards.write(step, span, &mut waits);
        waits
    }

    #[test]
    fn a_reader_waits_for_writers_and_a_writer_for_both() {
        let mut hazards = Hazards::default();
        assert_eq!(read(&mut hazards, 0, span(0, 100)), []);
        assert_eq!(write(&mut hazards, 1, span(50, 10)), [0]);
        assert_eq!(write(&mut hazards, 2, span(55, 20)), [1, 0], "its left half is another's");
        assert_eq!(read(&mut hazards, 3, span(40, 30)), [1, 2], "40..50 was only read");
        assert_eq!(write(&mut hazards, 4, span(0, 100)), [0, 0, 3, 1, 3, 2, 3, 2, 0]);
        assert_eq!(read(&mut hazards, 5, span(99, 1)), [4]);
    }

    #[test]
    fn spaces_and_neighbours_are_apart_and_nothing_touches_nothing() {
        let mut hazards = Hazards::default();
        assert_eq!(write(&mut hazards, 0, span(10, 10)), []);
        assert_eq!(write(&mut hazards, 1, span(0, 10)), []);
        assert_eq!(write(&mut hazards, 2, span(20, 10)), []);
        assert_eq!(write(&mut hazards, 3, span(15, 0)), []);
        assert_eq!(read(&mut hazards, 3, span(15, 0)), []);
        assert_eq!(write(&mut hazards, 4, Span { space: Space::Input, ..span(0, 30) }), []);
        assert_eq!(read(&mut hazards, 5, span(0, 30)), [1, 0, 2]);
    }
}
