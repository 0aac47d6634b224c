//! Bulk copies, by the lanes of the role copy: 16 bytes each where addresses and size allow it, else element by element.
//!
//! The copy is done when the lanes have done it; a `BulkWait` is the barrier that makes it visible to all of them, and a
//! `ProxyFence` the barrier that makes what they did before visible to the copy.

use super::place::Address;
use super::role::RoleCode;
use super::text::Reg;
use crate::ir::{Place, Value};

impl RoleCode<'_> {
    pub fn bulk_copy(&mut self, dst: &Place, src: &Place, count: Value) {
        let size = self.kernel.base_type(dst.base).map_or(1, |ty| ty.size() as u32);
        let [(to, to_index), (from, from_index)] = [dst, src].map(|place| (place, self.value(place.index)));
        let (to, from) = (self.address(to, to_index, size), self.address(from, from_index, size));
        let count = self.value(count);
        let bytes = self.t.d("mul.lo.s64", &[&count, &size]);

        let mut bits = bytes;
        for place in [to, from] {
            let wide = match place.reg {
                Reg::D(_) => place.reg,
                _ => self.t.d("cvt.u64.u32", &[&place.reg]),
            };
            bits = self.t.d("or.b64", &[&bits, &wide]);
        }
        let low = self.t.d("and.b64", &[&bits, &15]);
        let (odd, slow, done) = (self.t.p("setp.ne.u64", &[&low, &0]), self.t.label(), self.t.label());
        self.t.jump_if(odd, slow);
        self.copy_loop(to, from, bytes, 16);
        self.t.jump(done);
        self.t.at(slow);
        self.copy_loop(to, from, bytes, size);
        self.t.at(done);
    }

    fn copy_loop(&mut self, to: Address, from: Address, bytes: Reg, unit: u32) {
        let (again, done) = (self.t.label(), self.t.label());
        let at = self.t.d("mul.lo.s64", &[&self.fixed.wide_lane, &unit]);
        let place = |code: &mut Self, base: Address| match base.reg {
            Reg::D(_) => code.t.d("add.s64", &[&base.reg, &at]),
            _ => {
                let at = code.t.r("cvt.u32.u64", &[&at]);
                code.t.r("add.u32", &[&base.reg, &at])
            }
        };
        self.t.at(again);
        let inside = self.t.p("setp.lt.s64", &[&at, &bytes]);
        self.t.branch_unless(inside, done);
        let (source, target) = (place(self, from), place(self, to));
        let (kind, data) = match unit {
            16 => {
                let data = [0; 4].map(|_| self.t.new_r().to_string()).join(", ");
                ("v4.b32".to_string(), format!("{{{data}}}"))
            }
            8 => ("b64".to_string(), self.t.new_d().to_string()),
            _ => (format!("b{}", unit * 8), self.t.new_r().to_string()),
        };
        self.t.line(format_args!("ld.{}.{kind} {data}, [{source}];", from.space()));
        self.t.line(format_args!("st.{}.{kind} [{target}], {data};", to.space()));
        self.t.op("add.s64", at, &[&at, &(u64::from(self.lanes) * u64::from(unit))]);
        self.t.line(format_args!("bra {again};"));
        self.t.at(done);
    }
}
