const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
function work(seed) {
  let kept = [], sum = 0;
  for (let i = 0; i < 60000; i++) {
    kept.push({ n: (i * seed) % 1009, s: String(i) });
    if (kept.length > 8000) kept = kept.slice(4000);
  }
  for (const k of kept) sum += k.n + k.s.length;
  return sum;
}
if (!isMainThread) parentPort.postMessage(work(workerData));
else {
  const results = [];
  for (const seed of [3, 7, 11]) {
    new Worker(__filename, { workerData: seed }).on('message', (m) => {
      results.push(m);
      if (results.length === 3) console.log(work(5), results.sort().join(' '));
    });
  }
}
