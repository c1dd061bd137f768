// Looks at the planner's explorer in a real browser: see lab/explorer/run.

import { execFile, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

const require = createRequire(join(process.env.NODE_MODULES, 'x'));
const { chromium } = require('playwright-core');
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const BOWLINE = process.env.BOWLINE;
const run = promisify(execFile);

const POINTS = 100;
const MOVES = 60;
const FIRST_PAINT_MS = 1000;
const MOVE_MS = 50;
const SEED = Number(process.env.SEED ?? 1);

const options = process.argv.slice(2);
const has = (name) => options.includes(name);
const shots = has('--screenshots') ? options[options.indexOf('--screenshots') + 1] : null;
const scratch = mkdtempSync(join(tmpdir(), 'explorer-'));
const env = { ...process.env, XDG_CACHE_HOME: scratch };

/** Rows of the table: what was looked at, what was found, whether that is right. */
const rows = [];
const found = (what, value, ok) => rows.push({ what, found: String(value), ok });

/** A generator of numbers below 1 (mulberry32). */
function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

async function serve() {
  const server = spawn(BOWLINE, ['plan', '--serve', '0'], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => server.on('exit', (code) => resolve(code)));
  let text = '';
  for await (const part of server.stdout) {
    text += part;
    const url = text.match(/http:\/\/\S+/);
    if (url) return { url: url[0], server, ended };
  }
  throw new Error(`bowline plan --serve said: ${text}`);
}

const problems = [];
const elsewhere = [];
async function open(browser, url, settings = {}) {
  const context = await browser.newContext(settings);
  const page = await context.newPage();
  page.on('console', (line) => line.type() === 'error' && problems.push(line.text()));
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('request', (request) => {
    const to = request.url();
    if (!to.startsWith(url.split('#')[0]) && !to.startsWith('data:')) elsewhere.push(to);
  });
  await page.goto(url);
  await settled(page);
  return page;
}
const settled = (page) =>
  page.waitForFunction(() => window.explorer && !window.explorer.pending, null, {
    timeout: 60_000,
  });

async function axe(page) {
  await page.evaluate(AXE);
  const result = await page.evaluate(() => window.axe.run(document));
  return result.violations.map((v) => `${v.id}: ${v.nodes[0].target} (${v.help})`);
}

/** Goes to a state by the address, and waits for its answer. */
async function go(page, state) {
  const hash =
    '#' +
    Object.entries(state)
      .map(([k, v]) => `${k}=${encodeURIComponent(v)}`)
      .join('&');
  await page.evaluate((to) => {
    window.explorer = null;
    location.hash = to;
  }, hash);
  await page.waitForFunction(() => window.explorer, null, { timeout: 60_000 });
  return page.evaluate(() => ({
    reply: window.explorer.reply,
    scheme: document.getElementById('scheme').textContent,
    cells: [...document.querySelectorAll('tbody tr')].map((tr) =>
      [...tr.cells].map((td) => td.textContent),
    ),
  }));
}

/** A state that a user could reach, off the sliders' steps as well. */
function point(next) {
  const between = (low, high) => low * (high / low) ** next();
  const one = (...values) => values[Math.floor(next() * values.length)];
  const state = {
    bandwidth: `${between(100, 3_200_000).toFixed(0)}Mbps`,
    loss: one(between(1e-8, 5e-2).toPrecision(5), between(1e-8, 1e-2).toExponential(3), '0'),
    burst: one('1', '1', between(1, 64).toFixed(2)),
    size: `${Math.round(between(4096, 2 ** 38))}B`,
    receivers: one('1', '1', '1', String(Math.round(between(2, 4096)))),
    goal: one('mean', 'mean', 'p50', 'p99', 'p999'),
    chunk: one('4KiB', '64KiB', '256KiB'),
    mtu: one('1024', '4096'),
  };
  if (next() < 0.5) state.distance = `${between(1, 20000).toFixed(3)}km`;
  else state.rtt = `${between(10, 200000).toFixed(0)}us`;
  return state;
}

/** Where two values differ; cores are the machine's own, and the version the printed object's. */
function differs(page, cli, path = '') {
  if (page !== null && cli !== null && typeof page === 'object' && typeof cli === 'object') {
    const keys = new Set([...Object.keys(page), ...Object.keys(cli)]);
    for (const key of keys) {
      if (key === 'cores' || (path === '' && key === 'version')) continue;
      const found = differs(page[key], cli[key], `${path}.${key}`);
      if (found) return found;
    }
    return null;
  }
  return Object.is(page, cli) ? null : `${path}: ${page} in the page, ${cli} by the command`;
}

async function numbers(page) {
  const next = random(SEED);
  const wrong = [];
  for (let i = 0; i < POINTS; i++) {
    const { reply, scheme, cells } = await go(page, point(next));
    if (reply.error) {
      wrong.push(reply.error.message);
      continue;
    }
    const words = reply.view.cli.split(' ').slice(1);
    const { stdout } = await run(BOWLINE, [...words, '--json'], { env, maxBuffer: 1 << 24 });
    const cli = JSON.parse(stdout);
    const take = cli.receivers ? cli.receivers.recommended : cli.recommended;
    const shown =
      JSON.stringify(cells) === JSON.stringify(reply.view.table.rows.map((r) => r.cells));
    const why =
      differs(reply.plan, cli) ??
      (scheme !== take ? `${scheme} is shown, not ${take}` : null) ??
      (shown ? null : 'the table shows something else');
    if (why) wrong.push(`${reply.view.cli}: ${why}`);
  }
  found(
    `numbers equal \`bowline plan --json\` at ${POINTS} random points`,
    wrong.length ? wrong.slice(0, 3).join('; ') : `${POINTS} of ${POINTS}`,
    wrong.length === 0,
  );
}

const middle = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
async function moves(page) {
  await go(page, { loss: '1e-5' });
  await settled(page);
  const sliders = ['bandwidth', 'distance', 'loss', 'burst', 'size', 'receivers'];
  const [numbers, maps] = [[], []];
  const best = Object.fromEntries(sliders.map((id) => [id, Infinity]));
  for (let i = 0; i < MOVES; i++) {
    const { answer, map } = await page.evaluate(
      ([id, back]) =>
        new Promise((resolve) => {
          const slider = document.getElementById(id);
          window.explorer = null;
          const began = performance.now();
          slider.value = Number(slider.value) + (back ? -1 : 1);
          slider.dispatchEvent(new Event('input', { bubbles: true }));
          // A message that is sent before a frame arrives when that is painted.
          const painted = new MessageChannel();
          requestAnimationFrame(() => painted.port2.postMessage(0));
          painted.port1.onmessage = () => {
            const answer = window.explorer ? performance.now() - began : Infinity;
            const look = () => {
              if (!window.explorer?.pending) resolve({ answer, map: performance.now() - began });
              else setTimeout(look, 0);
            };
            look();
          };
        }),
      [sliders[i % sliders.length], i % 12 >= 6],
    );
    numbers.push(answer);
    maps.push(map);
    best[sliders[i % sliders.length]] = Math.min(best[sliders[i % sliders.length]], answer);
  }
  // Others share the machine: of each slider the best move counts, and of those the slowest slider.
  const slowest = Math.max(...Object.values(best));
  found(
    `a slider's move: numbers, advice and curves painted within ${MOVE_MS} ms`,
    `${slowest.toFixed(1)} ms (the slowest slider's best; median of all ${middle(numbers).toFixed(1)} ms)`,
    has('--no-times') || slowest < MOVE_MS,
  );
  found(
    "a slider's move: until the heatmap has followed (median)",
    `${middle(maps).toFixed(0)} ms`,
    true,
  );
}

async function keyboard(page, url) {
  await go(page, { loss: '1e-5' });
  const before = await page.textContent('tbody');
  await page.focus('#loss');
  for (let i = 0; i < 8; i++) await page.keyboard.press('ArrowRight');
  await page.waitForFunction((old) => document.querySelector('tbody').textContent !== old, before);
  // The address follows a moment after the numbers.
  await page.waitForFunction(() => {
    const value = document.getElementById('loss-text').value;
    return value !== '1e-5' && location.hash.includes(`loss=${value}`);
  });
  await settled(page);
  const [hash, shown, value] = await page.evaluate(() => [
    location.hash,
    document.querySelector('tbody').textContent,
    document.getElementById('loss-text').value,
  ]);
  found(
    'a slider moves by the keyboard, and the numbers follow',
    `loss ${value}`,
    value !== '1e-5',
  );
  const again = await open(page.context().browser(), url + hash);
  const same = (await again.textContent('tbody')) === shown;
  found('the address holds the state', hash, same);
  await again.context().close();
  await page.fill('#size-text', 'much');
  await page.waitForFunction(() => !document.getElementById('error').hidden);
  const invalid = await page.getAttribute('#size-text', 'aria-invalid');
  const told = await page.textContent('#error');
  await page.fill('#size-text', '1GiB');
  await page.waitForFunction(() => document.getElementById('error').hidden);
  found(
    'a wrong value is named, and the page goes on',
    told,
    invalid === 'true' && told.includes('128MiB'),
  );
}

async function looks(browser, url) {
  const kinds = [
    ['light', { viewport: { width: 1360, height: 900 }, colorScheme: 'light' }],
    ['dark', { viewport: { width: 1360, height: 900 }, colorScheme: 'dark' }],
    [
      'phone',
      {
        viewport: { width: 390, height: 844 },
        isMobile: true,
        hasTouch: true,
        deviceScaleFactor: 2,
      },
    ],
  ];
  for (const [name, settings] of kinds) {
    const page = await open(browser, url, settings);
    const violations = await axe(page);
    found(
      `axe, ${name}`,
      violations.length ? violations.join('; ') : 'no violations',
      !violations.length,
    );
    const wide = await page.evaluate(
      () => document.documentElement.scrollWidth - window.innerWidth,
    );
    found(`nothing is cut off, ${name}`, wide > 0 ? `${wide} px too wide` : 'fits', wide <= 0);
    if (shots) await page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });
    await page.context().close();
  }
}

async function drawings(page) {
  const seen = await page.evaluate(() => {
    const colour = (element, what) => getComputedStyle(element, what);
    const cells = [...document.querySelectorAll('tbody td:first-child')];
    const paths = [...document.querySelectorAll('#curves path.l')];
    const wrong = cells.filter((cell) => {
      const path = paths.find((p) => p.textContent === cell.textContent);
      return path && colour(path).stroke !== colour(cell, '::before').backgroundColor;
    });
    const sources = [...document.querySelectorAll('figure svg text[style*="11px"]')].map(
      (text) => text.textContent,
    );
    return { paths: paths.length, wrong: wrong.map((cell) => cell.textContent), sources };
  });
  found(
    'a scheme has one colour in the table and the chart',
    seen.wrong.length ? seen.wrong.join(', ') : `${seen.paths} schemes`,
    seen.paths === 6 && !seen.wrong.length,
  );
  const dated = seen.sources.filter((text) => /^bowline plan .*, \d{4}-\d\d-\d\d$/.test(text));
  found('every drawing names its command and date', seen.sources[0] ?? 'none', dated.length === 2);
}

async function main() {
  if (shots) mkdirSync(shots, { recursive: true });
  const { url, server, ended } = await serve();
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
  try {
    const page = await open(browser, url);
    found('it loads and recommends', await page.textContent('#scheme'), true);
    const paints = [];
    for (let i = 0; i < 3; i++) {
      const fresh = await open(browser, url);
      paints.push(
        await fresh.evaluate(
          () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? Infinity,
        ),
      );
      await fresh.context().close();
    }
    found(
      `first paint within ${FIRST_PAINT_MS} ms`,
      `${Math.min(...paints).toFixed(0)} ms (best of 3)`,
      has('--no-times') || Math.min(...paints) < FIRST_PAINT_MS,
    );
    await drawings(page);
    await moves(page);
    await keyboard(page, url);
    await numbers(page);
    await looks(browser, url);
    const file = join(scratch, 'page.html');
    await run(BOWLINE, ['plan', '--page', file, '--loss', '0.1%', '--size', '16MiB'], { env });
    const still = await open(browser, pathToFileURL(file).href);
    const line = await still.textContent('#headline');
    found(
      'the static file works without a server',
      line,
      line.startsWith('16 MiB') && line.includes('1e-3'),
    );
    found('no console error', problems.length ? problems[0] : 'none', !problems.length);
    found(
      'nothing is loaded from elsewhere',
      elsewhere.length ? elsewhere[0] : 'nothing',
      !elsewhere.length,
    );
  } finally {
    await browser.close();
    server.kill('SIGINT');
  }
  const code = await ended;
  found('Ctrl-C ends the server', `exit status ${code}`, code === 0);
}

main().then(
  () => {
    rmSync(scratch, { recursive: true, force: true });
    const ok = rows.every((row) => row.ok);
    if (has('--json')) {
      console.log(JSON.stringify({ version: 1, seed: SEED, ok, rows }, null, 2));
    } else {
      const width = Math.max(...rows.map((row) => row.what.length));
      for (const row of rows)
        console.log(`${row.ok ? 'ok  ' : 'FAIL'}  ${row.what.padEnd(width)}  ${row.found}`);
    }
    process.exit(has('--check') && !ok ? 1 : 0);
  },
  (error) => {
    rmSync(scratch, { recursive: true, force: true });
    console.error(error);
    process.exit(1);
  },
);
