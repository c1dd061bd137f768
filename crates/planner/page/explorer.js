'use strict';
(async () => {
  const $ = (id) => document.getElementById(id);
  const form = $('controls');

  // Values between two powers of ten, and sizes by halves of powers of two.
  const STEPS = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  const decades = (from, to, last, text) => {
    const values = [];
    for (let e = from; e <= to; e++) {
      for (const step of STEPS) if (e < to || step <= last) values.push(text(step, e));
    }
    return values;
  };
  const rate = (step, e) => {
    const unit = Math.min(3, Math.floor(e / 3) - 1);
    const number = +(step * 10 ** (e - 3 * (unit + 1))).toPrecision(6);
    return [step * 10 ** e, number + ['k', 'M', 'G', 'T'][unit] + 'bps'];
  };
  const number = (unit) => (step, e) => {
    const value = +(step * 10 ** e).toPrecision(6);
    return [value, value + unit];
  };
  const sizes = [];
  for (let e = 12; e <= 40; e++) {
    for (const half of e < 40 ? [2, 3] : [2]) {
      const unit = Math.floor(e / 10);
      const value = (half / 2) * 2 ** (e - 10 * unit);
      sizes.push([(half / 2) * 2 ** e, value + ['', 'KiB', 'MiB', 'GiB', 'TiB'][unit]]);
    }
  }
  const counts = (most) => {
    const values = [];
    for (let n = 1; n <= most; n *= 2) {
      values.push([n, '' + n]);
      if (n > 1 && n < most) values.push([1.5 * n, '' + 1.5 * n]);
    }
    return values;
  };
  const loss = (step, e) => [step * 10 ** e, step + 'e' + e];
  const SLIDERS = [
    ['bandwidth', 'Bandwidth', decades(8, 12, 3, rate)],
    ['distance', 'Distance', decades(0, 4, 2, number('km'))],
    ['loss', 'Packet loss', [[0, '0'], ...decades(-8, -2, 8, loss), [0.1, '1e-1']]],
    ['burst', 'Burstiness', counts(256)],
    ['size', 'Message', sizes],
    ['receivers', 'Receivers', counts(4096)],
  ];
  const DEFAULTS = {
    bandwidth: '400Gbps', distance: '3750km', rtt: '', loss: '1e-5', burst: '1', size: '128MiB',
    receivers: '1', goal: 'mean', chunk: '64KiB', mtu: '4096', x: 'loss',
  };

  // The planner: a question goes into its memory, an answer comes out.
  let module;
  let planner;
  async function fresh() {
    return (await WebAssembly.instantiate(module, {})).exports;
  }
  const put = (text) => {
    const data = new TextEncoder().encode(text);
    const at = planner.input(data.length);
    new Uint8Array(planner.memory.buffer, at, data.length).set(data);
  };
  const take = (length) =>
    new TextDecoder().decode(new Uint8Array(planner.memory.buffer, planner.output(), length));

  // The state, in the address's fragment: only what differs from the defaults.
  let state = { ...DEFAULTS };
  const start = Object.fromEntries(
    form.dataset.state.split('\n').filter(Boolean).map((line) => {
      const at = line.indexOf('=');
      return [line.slice(0, at), line.slice(at + 1)];
    }));
  const base = { ...DEFAULTS, ...start };
  function read() {
    state = { ...base };
    if (location.hash.length > 1) {
      state = { ...DEFAULTS };
      for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
        if (key in DEFAULTS) state[key] = value.replace(/[\n\r]/g, ' ');
      }
    }
  }
  const fragment = () => {
    const differ = Object.keys(DEFAULTS).filter((key) => state[key] !== DEFAULTS[key]);
    const part = (key) => key + '=' + encodeURIComponent(state[key]).replace(/%2C/g, ',');
    return differ.length > 0 ? '#' + differ.map(part).join('&') : '#bandwidth=' + state.bandwidth;
  };
  const question = (source) =>
    Object.keys(DEFAULTS).map((key) => key + '=' + state[key] + '\n').join('') +
    'source=' + source + '\n';
  let saving = 0;
  function save() {
    // Browsers limit how often an address may change.
    clearTimeout(saving);
    saving = setTimeout(() => history.replaceState(null, '', fragment()), 150);
  }

  // The controls.
  const controls = {};
  for (const [key, title, values] of SLIDERS) {
    const box = document.createElement('div');
    box.className = 'slider';
    box.innerHTML =
      `<div class="top"><label for="${key}">${title} <span class="note" id="${key}-note"></span>` +
      `</label><input type="text" id="${key}-text" aria-label="${title}, with its unit" ` +
      `inputmode="text" spellcheck="false"></div>` +
      `<input type="range" id="${key}" min="0" max="${values.length - 1}" step="1">`;
    $('sliders').append(box);
    const range = box.querySelector('[type=range]');
    const text = box.querySelector('[type=text]');
    controls[key] = { range, text, values };
    range.addEventListener('input', () => set(key, values[range.value][1]));
    text.addEventListener('input', () => set(key, text.value.trim()));
    text.addEventListener('blur', show);
  }
  for (const select of form.querySelectorAll('select')) {
    select.addEventListener('input', () => set(select.name, select.value));
  }
  function set(key, value) {
    state[key] = value;
    if (key === 'distance') state.rtt = '';
    save();
    ask();
  }

  const nearest = (values, value) => {
    const away = ([v]) => Math.abs(Math.log((v + 1e-12) / (value + 1e-12)));
    return values.reduce((best, v, i) => (away(v) < away(values[best]) ? i : best), 0);
  };
  let at = {};
  function show() {
    for (const [key, { range, text, values }] of Object.entries(controls)) {
      const shown = key === 'distance' && state.rtt !== '' ? Math.round(at.distance) + 'km'
        : state[key];
      if (document.activeElement !== text) text.value = shown;
      if (key in at && values[range.value][1] !== shown) range.value = nearest(values, at[key]);
      range.setAttribute('aria-valuetext', shown + (key === 'burst' ? ' packets' : ''));
    }
    for (const select of form.querySelectorAll('select')) {
      if (![...select.options].some((option) => option.value === state[select.name])) {
        select.add(new Option(state[select.name]));
      }
      select.value = state[select.name];
    }
  }

  // Words and curves follow at once: browsers send a slider's moves once per frame. The heatmap
  // follows in steps behind them, the newest last.
  const today = new Date().toISOString().slice(0, 10);
  function ask() {
    if (planner) answer();
  }
  async function answer() {
    let reply;
    try {
      put(question(''));
      reply = JSON.parse(take(planner.answer()));
      if (!reply.error) draw(reply);
    } catch (error) {
      // A planner that stopped in the middle is not asked again.
      planner = await fresh();
      reply = { error: { key: '', message: 'The planner cannot answer this: ' + error.message } };
    }
    fail(reply.error);
    show();
    // What tests look at.
    window.explorer = { reply, state: { ...state }, pending: running };
  }
  function fail(error) {
    $('error').hidden = !error;
    $('error').textContent = error ? error.message : '';
    for (const [key, { text }] of Object.entries(controls)) {
      const wrong = error && (error.key === key || (error.key === 'rtt' && key === 'distance'));
      text.setAttribute('aria-invalid', wrong ? 'true' : 'false');
    }
  }
  // A drawing brings its styles along. The page has them already, and new ones would cost a
  // restyling of everything.
  const picture = (svg) => svg.replace(/<style>.*?<\/style>/s, '');
  const cell = (tag, text) => {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  };
  function draw({ view, at: place }) {
    at = place;
    const { recommended } = view;
    $('scheme').textContent = recommended.scheme;
    $('result').style.setProperty('--take', `var(--s${recommended.colour})`);
    $('reason').textContent =
      recommended.reason.charAt(0).toUpperCase() + recommended.reason.slice(1);
    const run = recommended.run.split('`');
    $('run').replaceChildren(`${recommended.scheme}: `, ...run.map((part, i) =>
      i % 2 ? cell('code', part) : part), '.');
    $('headline').textContent = `${view.headline}. Ideal: ${view.ideal}.`;
    $('distance-note').textContent = `${view.rtt} RTT`;
    $('burst-note').textContent = +state.burst > 1 ? 'lost in a row' : 'independent';
    const head = document.createElement('tr');
    head.append(...view.table.head.map((name) => {
      const th = cell('th', name);
      th.scope = 'col';
      return th;
    }));
    document.querySelector('thead').replaceChildren(head);
    document.querySelector('tbody').replaceChildren(...view.table.rows.map((row) => {
      const line = document.createElement('tr');
      if (row.best) line.className = 'best';
      line.append(...row.cells.map((text) => cell('td', text)));
      line.firstChild.style.setProperty('--c', `var(--s${row.colour})`);
      return line;
    }));
    $('changes-section').hidden = view.changes.length === 0;
    $('changes').replaceChildren(...view.changes.map((line) => cell('li', line)));
    $('cli').textContent = view.cli;
    const source = `${view.cli}, ${today}`;
    put(question(source));
    $('curves').innerHTML = picture(take(planner.curves()));
    follow(question(source));
  }

  let waiting = null;
  let running = false;
  function follow(next) {
    waiting = next;
    if (!running) {
      running = true;
      // What is there already is painted first.
      requestAnimationFrame(() => setTimeout(step, 0, 0));
    }
  }
  async function step(left) {
    try {
      if (left === 0) {
        put(waiting);
        waiting = null;
        left = planner.map_begin();
      }
      const until = performance.now() + 10;
      while (left > 0 && performance.now() < until) left = planner.map_step();
      if (left > 0) {
        setTimeout(step, 0, left);
        return;
      }
      const svg = take(planner.map_end());
      if (svg) $('map').innerHTML = picture(svg);
    } catch {
      planner = await fresh();
    }
    running = false;
    if (waiting) follow(waiting);
    else if (window.explorer) window.explorer.pending = false;
  }

  $('copy').addEventListener('click', async () => {
    const link = location.href.split('#')[0] + fragment();
    try {
      await navigator.clipboard.writeText(link);
      $('copy').textContent = 'Copied';
    } catch {
      history.replaceState(null, '', fragment());
      $('copy').textContent = 'In the address bar';
    }
    setTimeout(() => { $('copy').textContent = 'Copy link'; }, 1500);
  });
  $('reset').addEventListener('click', () => {
    state = { ...base };
    save();
    ask();
  });
  window.addEventListener('hashchange', () => {
    read();
    ask();
  });
  form.addEventListener('submit', (event) => event.preventDefault());
  read();
  show();
  // The page is painted before the planner is there.
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const bytes = Uint8Array.from(atob($('wasm').textContent.trim()), (c) => c.charCodeAt(0));
  module = await WebAssembly.compile(bytes);
  planner = await fresh();
  answer();
})();
