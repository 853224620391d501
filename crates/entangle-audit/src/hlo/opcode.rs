//! The operations that the audit tells apart.

/// What the audit tells apart. Every operation not named here is `Other`: each of its results depends on all its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Parameter,
    Constant,
    Tuple,
    GetTupleElement,
    While,
    Conditional,
    /// Operand i is parameter i of what it calls.
    Call,
    /// As `Call`; runtimes run it as one, and it writes each of its results.
    Fusion,
    AsyncStart,
    AsyncUpdate,
    AsyncDone,
    /// Leaf i of the result is leaf i of operand 0: `opt-barrier`, `domain`, `add-dependency`.
    PassThrough,
    CustomCall,
    Copy,
    CopyStart,
    Bitcast,
    /// The elements stay in their order.
    Reshape,
    Transpose,
    Slice,
    /// `dynamic-slice` and `gather`: the result is picked out of operand 0.
    Pick,
    /// `dynamic-update-slice`: operand 0 with operand 1 put into it.
    Update,
    /// As `Update`, with operands of which one is the places.
    Scatter,
    /// Elements of the operands at other places: `reverse`, `broadcast`, `pad`, `concatenate`, `sort`.
    Move,
    /// 0, 1, 2 and so on.
    Iota,
    /// The number of the device.
    DeviceNumber,
    Select,
    Convert,
    /// `add`, `or`, `xor`: with zero on either side they change nothing.
    Sum,
    /// `subtract` and shifts: with zero on the right they change nothing.
    Difference,
    Product,
    Quotient,
    Compare,
    /// `all-gather` and others that hand elements of one device to another.
    CollectiveMove,
    /// As `CollectiveMove`; a device to which none is handed gets zeros.
    CollectivePermute,
    /// `all-reduce` and `reduce-scatter`, which compute.
    CollectiveReduce,
    /// Of a transfer to the host: see `tpu.rs`.
    Send,
    SendDone,
    Receive,
    Other,
}

impl Opcode {
    pub(super) fn parse(opcode: &str) -> Self {
        let starts = |names: &[&str]| names.iter().any(|name| opcode.starts_with(name));
        match opcode {
            "parameter" => Self::Parameter,
            "constant" => Self::Constant,
            "tuple" => Self::Tuple,
            "get-tuple-element" => Self::GetTupleElement,
            "while" => Self::While,
            "conditional" => Self::Conditional,
            "call" => Self::Call,
            "fusion" => Self::Fusion,
            "async-start" => Self::AsyncStart,
            "async-update" => Self::AsyncUpdate,
            "async-done" => Self::AsyncDone,
            "opt-barrier" | "optimization-barrier" | "domain" | "add-dependency" => Self::PassThrough,
            "custom-call" => Self::CustomCall,
            "copy" | "copy-done" => Self::Copy,
            "copy-start" => Self::CopyStart,
            "bitcast" => Self::Bitcast,
            "reshape" => Self::Reshape,
            "transpose" => Self::Transpose,
            "slice" => Self::Slice,
            "dynamic-slice" | "gather" => Self::Pick,
            "dynamic-update-slice" => Self::Update,
            "scatter" => Self::Scatter,
            "reverse" | "broadcast" | "pad" | "concatenate" | "sort" => Self::Move,
            "iota" => Self::Iota,
            "partition-id" | "replica-id" => Self::DeviceNumber,
            "select" => Self::Select,
            "convert" => Self::Convert,
            "compare" => Self::Compare,
            "add" | "or" | "xor" => Self::Sum,
            "subtract" | "shift-left" | "shift-right-arithmetic" | "shift-right-logical" => Self::Difference,
            "multiply" => Self::Product,
            "divide" => Self::Quotient,
            _ if starts(&["all-gather", "all-to-all", "ragged-all-to-all"]) => Self::CollectiveMove,
            _ if starts(&["collective-permute", "collective-broadcast"]) => Self::CollectivePermute,
            _ if starts(&["all-reduce", "reduce-scatter", "collective-"]) => Self::CollectiveReduce,
            _ => Self::Other,
        }
    }

    pub(super) fn of_host_transfer(opcode: &str) -> Self {
        match opcode {
            "send" => Self::Send,
            "send-done" => Self::SendDone,
            "recv" => Self::Receive,
            _ => Self::Other,
        }
    }

    pub(crate) fn is_collective(self) -> bool {
        matches!(self, Self::CollectiveMove | Self::CollectivePermute | Self::CollectiveReduce)
    }
}

/// XLA's own calls that only say where a value lies: result i is operand i, or a device's part of it. Only programs as written have them.
pub(crate) fn hands_on(target: &str) -> bool {
    target.starts_with("xla.sdy.")
        || matches!(
            target,
            "Sharding"
                | "SPMDFullToShardShape"
                | "SPMDShardToFullShape"
                | "annotate_device_placement"
                | "MoveToHost"
                | "MoveToDevice"
        )
}
