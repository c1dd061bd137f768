//! What is measured.

use std::hint::black_box;

use bowline_codes::Vectors;
use bowline_codes::hadamard::{Hadamard, Layout};
use bowline_codes::reduce::{DataType, ReduceOp};

use crate::buffers::{Place, Run};
use crate::report::Ratio;

/// Rows that are measured in turn, in all places.
pub(crate) struct Suite {
    pub(crate) places: [Place; 2],
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
}

/// One computation.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) run: Box<Run>,
}

impl Row {
    fn new(name: impl Into<String>, run: impl Fn(&mut [u8], &[u8], &[u8]) + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    fn copy() -> Self {
        Self::new("copy", |out, a, _| black_box(out).copy_from_slice(a))
    }
}

/// What a packet carries in an Ethernet of jumbo frames.
const PACKET_BYTES: usize = 4096;

/// Encoding and decoding by every type and kind of vector, and the paper's layout for comparison.
pub(crate) fn hadamard() -> Suite {
    let mut rows = vec![Row::copy()];
    let local = Layout::Local { packet_bytes: PACKET_BYTES };
    for dtype in [DataType::F32, DataType::Bf16, DataType::F16] {
        for vectors in Vectors::supported() {
            rows.extend(both_ways(dtype, local, vectors, format!("{dtype} {}", vectors.name())));
        }
    }
    let paper = Layout::Blocks { block: 1024, stride: 1024 };
    rows.extend(both_ways(DataType::F32, paper, Vectors::best(), "f32 S = p = 1024".into()));
    let best = Vectors::best().name();
    let ratio = |way: &str, place, at_least| Ratio {
        of: format!("{way} f32 {best}"),
        to: "copy".into(),
        place,
        at_least,
    };
    // Hot: 1.5 times what AVX2 had over a copy of 17 GB/s when the layout was chosen, 3.6 and 4.5
    // GB/s.
    let ratios = vec![
        ratio("encode", "cold, 64 MiB", 0.5),
        ratio("decode", "cold, 64 MiB", 0.5),
        ratio("encode", "hot, 256 KiB", 0.32),
        ratio("decode", "hot, 256 KiB", 0.40),
    ];
    Suite { places: [Place::hot(), Place::cold()], rows, ratios }
}

fn both_ways(dtype: DataType, layout: Layout, vectors: Vectors, name: String) -> [Row; 2] {
    let plan = move |bytes: usize| {
        Hadamard::new(dtype, bytes / dtype.size(), layout, 1)
            .expect("layouts of this bench are sound")
            .with_vectors(vectors)
    };
    [
        Row::new(format!("encode {name}"), move |out, a, _| plan(a.len()).encode(a, out)),
        Row::new(format!("decode {name}"), move |out, a, _| plan(a.len()).decode(a, out)),
    ]
}

/// Sums of all types, other operations of f32, and sums of many.
pub(crate) fn reduce() -> Suite {
    let mut rows = vec![Row::copy()];
    let best = Vectors::best();
    for dtype in DataType::ALL {
        rows.push(into(ReduceOp::Sum, dtype, best));
    }
    for op in [ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
        rows.push(into(op, DataType::F32, best));
    }
    for vectors in Vectors::supported().filter(|v| *v != best) {
        for dtype in [DataType::F32, DataType::Bf16, DataType::F16] {
            rows.push(into(ReduceOp::Sum, dtype, vectors));
        }
    }
    for dtype in [DataType::F32, DataType::Bf16, DataType::F16] {
        rows.push(Row::new(format!("acc sum {dtype} {}", best.name()), move |out, a, _| {
            best.reduce(ReduceOp::Sum, dtype, out, a);
        }));
    }
    rows.push(Row::new(format!("sum of 4 f32 {}", best.name()), move |out, a, b| {
        best.reduce_many(ReduceOp::Sum, DataType::F32, out, &[a, b, a, b]);
    }));
    // Again and again without the sum, numbers would soon be subnormal.
    rows.push(Row::new(format!("average f32 {}", best.name()), move |out, a, b| {
        best.reduce_into(ReduceOp::Average, DataType::F32, out, a, b);
        best.divide(DataType::F32, out, 3);
    }));
    Suite { places: [Place::hot(), Place::cold()], rows, ratios: Vec::new() }
}

fn into(op: ReduceOp, dtype: DataType, vectors: Vectors) -> Row {
    Row::new(format!("{op} {dtype} {}", vectors.name()), move |out, a, b| {
        vectors.reduce_into(op, dtype, out, a, b);
    })
}
