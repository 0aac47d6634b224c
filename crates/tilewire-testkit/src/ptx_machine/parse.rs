//! Parses PTX text into instructions.

use std::collections::HashMap;

#[derive(Clone, Debug)]
pub enum Operand {
    /// A number in the register file.
    Reg(usize),
    Imm(u64),
    Vector(Vec<Operand>),
    /// A register or 0, plus an offset.
    Memory(Option<usize>, i64),
    Special(&'static str),
}

#[derive(Debug)]
pub struct Instr {
    /// The predicate register, and true if it must be false.
    pub guard: Option<(usize, bool)>,
    pub parts: Vec<String>,
    pub args: Vec<Operand>,
    /// The target of a branch.
    pub target: usize,
}

pub struct Code {
    pub instrs: Vec<Instr>,
    /// The text of each.
    pub lines: Vec<String>,
    pub registers: usize,
    pub local: usize,
}

const CLASSES: [char; 4] = ['p', 'h', 'r', 'd'];

impl Code {
    pub fn parse(text: &str) -> Result<Code, String> {
        let body = &text[text.find("\n{").ok_or("no body")? + 2..];
        let (mut firsts, mut registers, mut local) = ([0; 4], 0, 0);
        let mut labels: HashMap<&str, usize> = HashMap::new();
        let mut lines = Vec::new();
        for line in body.lines() {
            let line = line.split("//").next().unwrap_or("").trim();
            if let Some(declared) = line.strip_prefix(".reg") {
                let name = declared.split('%').nth(1).ok_or("a register declaration")?;
                let class = CLASSES.iter().position(|&c| name.starts_with(c)).ok_or("a register class")?;
                firsts[class] = registers;
                registers += name[2..name.len() - 2].parse::<usize>().map_err(|e| e.to_string())?;
            } else if line.starts_with(".local") {
                let size = line.split(['[', ']']).nth(1).ok_or("a size")?;
                local = size.parse().map_err(|_| "a size")?;
            } else if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, lines.len());
            } else if !line.is_empty() && line != "}" {
                lines.push(line.trim_end_matches(';').to_string());
            }
        }
        let instrs = lines.iter().map(|line| instr(line, &firsts, &labels)).collect::<Result<_, _>>()?;
        Ok(Code { instrs, lines, registers, local })
    }
}

fn instr(line: &str, firsts: &[usize; 4], labels: &HashMap<&str, usize>) -> Result<Instr, String> {
    let (guard, rest) = match line.strip_prefix('@') {
        Some(rest) => {
            let (p, rest) = rest.split_once(' ').ok_or("a guard")?;
            let (p, not) = p.strip_prefix('!').map_or((p, false), |p| (p, true));
            (Some((register(p, firsts).ok_or("a guard register")?, not)), rest)
        }
        None => (None, line),
    };
    let (op, args) = rest.split_once(' ').unwrap_or((rest, ""));
    let parts: Vec<String> = op.split('.').map(String::from).collect();
    if parts[0] == "bra" {
        let target = *labels.get(args.trim()).ok_or_else(|| format!("no label {args}"))?;
        return Ok(Instr { guard, parts, args: Vec::new(), target });
    }
    let args = split(args).iter().map(|arg| operand(arg, firsts)).collect::<Result<_, _>>()?;
    Ok(Instr { guard, parts, args, target: 0 })
}

/// Cuts a text at commas outside braces.
fn split(args: &str) -> Vec<String> {
    let (mut out, mut depth) = (vec![String::new()], 0);
    for c in args.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                out.push(String::new());
                continue;
            }
            _ => {}
        }
        out.last_mut().expect("one at least").push(c);
    }
    out.iter().map(|arg| arg.trim().to_string()).filter(|arg| !arg.is_empty()).collect()
}

fn register(name: &str, firsts: &[usize; 4]) -> Option<usize> {
    let name = name.strip_prefix('%')?;
    let class = CLASSES.iter().position(|&c| name.starts_with(c))?;
    Some(firsts[class] + name[1..].parse::<usize>().ok()?)
}

fn operand(arg: &str, firsts: &[usize; 4]) -> Result<Operand, String> {
    let wrong = || format!("operand {arg}");
    if let Some(inner) = arg.strip_prefix('{') {
        let inner = inner.strip_suffix('}').ok_or_else(wrong)?;
        return Ok(Operand::Vector(split(inner).iter().map(|arg| operand(arg, firsts)).collect::<Result<_, _>>()?));
    }
    if let Some(inner) = arg.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or_else(wrong)?;
        let (base, offset) = match inner.split_once('+') {
            Some((base, offset)) => (base, offset.parse().map_err(|_| wrong())?),
            None => (inner, 0),
        };
        // Symbols are at 0 of their space.
        return Ok(Operand::Memory(register(base, firsts), offset));
    }
    for special in ["%tid.x", "%ctaid.x", "%globaltimer"] {
        if arg == special {
            return Ok(Operand::Special(special));
        }
    }
    if arg.starts_with('%') {
        return register(arg, firsts).map(Operand::Reg).ok_or_else(wrong);
    }
    if let Some(hex) = arg.strip_prefix("0x").or(arg.strip_prefix("0f")).or(arg.strip_prefix("0d")) {
        return u64::from_str_radix(hex, 16).map(Operand::Imm).map_err(|_| wrong());
    }
    if let Ok(number) = arg.parse::<i128>() {
        return Ok(Operand::Imm(number as u64));
    }
    // The share of a cache policy.
    if arg == "1.0" {
        return Ok(Operand::Imm(1));
    }
    // The address of a symbol.
    if matches!(arg, "args" | "frame" | "depot") { Ok(Operand::Imm(0)) } else { Err(wrong()) }
}
