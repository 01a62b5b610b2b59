const crypto = require('crypto');
const map = new Map();
let x = 1;
for (let i = 0; i < 200000; i++) {
  x = (Math.imul(x, 1103515245) + 12345) >>> 0;
  const key = 'k' + (x >>> 16);
  if (!map.has(key)) map.set(key, []);
  map.get(key).push({ i, text: 'room ' + i });
}
let sum = 0;
for (const list of map.values()) for (const o of list) sum += o.i + o.text.length;
const buffer = Buffer.alloc(24 << 20);
for (let i = 0; i < buffer.length; i += 4) buffer.writeUInt32LE((i * 2654435761) >>> 0, i);
const numbers = new Float64Array(1 << 20).map((_, i) => (i * 7919) % 1000003).sort();
console.log(map.size, sum, numbers[1000], crypto.createHash('sha256').update(buffer).digest('hex'));
