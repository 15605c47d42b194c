// What stands on the page as a file that needs no style sheet: every shape and letter with the look
// it has right now, in this theme, language and step. As SVG, or drawn as PNG at twice the size.
async (what, kind) => {
  const charts = what === 'charts';
  const boxes = [...document.querySelectorAll(charts ? '[id^=kd-plot-] .js-plotly-plot' : '#kd-picture')]
    .filter((box) => box.getClientRects().length);
  if (!boxes.length) return;
  const NS = 'http://www.w3.org/2000/svg', EDGE = 16;
  const HANDED = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray',
    'stroke-linecap', 'stroke-linejoin', 'font-family', 'font-size', 'font-weight', 'font-style',
    'letter-spacing', 'text-anchor', 'paint-order', 'visibility'];
  const OWN = {opacity: '1', 'dominant-baseline': 'auto'};
  const make = (name, values, ...inside) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const copied = (node, above) => {
    if (node.nodeType === Node.TEXT_NODE) return node.cloneNode();
    if (node.nodeType !== Node.ELEMENT_NODE || /^(style|script)$/.test(node.localName)) return null;
    if (/^(defs|clipPath|title|desc)$/.test(node.localName)) return node.cloneNode(true);
    const look = getComputedStyle(node);
    if (look.display === 'none') return null;
    const made = node.cloneNode(false);
    for (const {name} of [...node.attributes]) {
      if (/^(class|style|tabindex|role|focusable)$|^(data|aria|on)/.test(name)) made.removeAttribute(name);
    }
    for (const name of HANDED) {
      const value = look.getPropertyValue(name);
      if (!above || value !== above.getPropertyValue(name)) made.setAttribute(name, value);
    }
    for (const [name, plain] of Object.entries(OWN)) {
      const value = look.getPropertyValue(name);
      if (value !== plain) made.setAttribute(name, value);
    }
    if (look.whiteSpace.startsWith('pre')) made.setAttribute('xml:space', 'preserve');
    for (const child of node.childNodes) { const inside = copied(child, look); if (inside) made.append(inside); }
    return made;
  };
  const first = boxes[0].getBoundingClientRect(), placed = [];
  let [left, top, right, bottom] = [first.left, first.top, first.left, first.top];
  const put = (rect, made) => {
    left = Math.min(left, rect.left); top = Math.min(top, rect.top);
    right = Math.max(right, rect.right); bottom = Math.max(bottom, rect.bottom);
    placed.push(made);
  };
  const clear = (colour) => colour === 'transparent' || /, 0\)$/.test(colour);
  const surface = (node, look) => {  // a tag's ground, a table's rules
    const at = node.getBoundingClientRect();
    if (!clear(look.backgroundColor) && node.id !== 'kd-picture') {
      put(at, make('rect', {x: at.left, y: at.top, width: at.width, height: at.height,
        rx: parseFloat(look.borderTopLeftRadius) || 0, fill: look.backgroundColor}));
    }
    const rule = parseFloat(look.borderBottomWidth);
    if (rule > 0 && look.borderBottomStyle !== 'none') {
      put(at, make('rect', {x: at.left, y: at.bottom - rule, width: at.width, height: rule, fill: look.borderBottomColor}));
    }
  };
  const pen = document.createElement('canvas').getContext('2d');
  const WORD = /[\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]|[^\s\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]+\s*|\s+/gu;
  const words = (node, look) => {  // a text as the lines that the browser broke it into
    const lines = [], range = document.createRange();
    for (const match of node.data.matchAll(WORD)) {
      range.setStart(node, match.index); range.setEnd(node, match.index + match[0].length);
      const at = range.getClientRects()[0];
      if (!at || !at.width) continue;
      const line = lines.at(-1);
      if (line && Math.abs(line.at.top - at.top) < 3) { line.text += match[0]; line.right = at.right; }
      else if (match[0].trim()) lines.push({at, text: match[0], right: at.right});
    }
    pen.font = `${look.fontWeight} ${look.fontSize} ${look.fontFamily}`;
    const ascent = pen.measureText('x').fontBoundingBoxAscent;
    for (const {at, text, right: end} of lines) {
      put({left: at.left, top: at.top, right: end, bottom: at.bottom}, make('text', {x: at.left, y: at.top + ascent,
        fill: look.color, 'font-family': look.fontFamily, 'font-size': look.fontSize, 'font-weight': look.fontWeight}, text.trimEnd()));
    }
  };
  const walk = (node) => {
    const look = getComputedStyle(node);
    if (look.display === 'none' || look.visibility === 'hidden') return;
    if (node.localName === 'svg') {
      const at = node.getBoundingClientRect(), made = copied(node, null);
      if (!at.width || !made) return;
      for (const [key, value] of Object.entries({x: at.left, y: at.top, width: at.width, height: at.height})) made.setAttribute(key, value);
      made.setAttribute('overflow', 'visible');
      put(at, made);
      return;
    }
    if (charts && node.classList.contains('modebar-container')) return;
    if (!charts) surface(node, look);
    for (const child of node.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) walk(child);
      else if (child.nodeType === Node.TEXT_NODE && child.data.trim()) words(child, look);
    }
  };
  boxes.forEach(walk);
  const [width, height] = [right - left + 2 * EDGE, bottom - top + 2 * EDGE].map(Math.ceil);
  const said = (query) => document.querySelector(query)?.textContent.trim() || '';
  const whole = make('svg', {xmlns: NS, viewBox: `0 0 ${width} ${height}`, width, height},
    make('title', {}, said('h1')), make('desc', {}, `${said('#kd-stepbar .kd-sentence')} ${location.href}`.trim()),
    make('rect', {width, height, fill: getComputedStyle(document.body).backgroundColor}),
    make('g', {transform: `translate(${EDGE - left} ${EDGE - top})`}, ...placed));
  const text = new XMLSerializer().serializeToString(whole).replace(/url\((?:&quot;|['"])?[^)#]*#([^)&'"]+)(?:&quot;|['"])?\)/g, 'url(#$1)');
  let file = new Blob([text], {type: 'image/svg+xml'});
  if (kind === 'png') {
    const drawn = new Image(), canvas = document.createElement('canvas');
    drawn.src = URL.createObjectURL(file);
    await drawn.decode();
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext('2d').drawImage(drawn, 0, 0, 2 * width, 2 * height);
    URL.revokeObjectURL(drawn.src);
    file = await new Promise((done) => canvas.toBlob(done, 'image/png'));
  }
  const step = document.querySelector('#kd-stepbar input[type=range]')?.value;
  const page = location.pathname.split('/').filter(Boolean).pop() || 'page';
  const link = document.createElement('a');
  link.href = URL.createObjectURL(file);
  link.download = `kdalab-${page}-${charts ? 'charts' : step === undefined ? 'picture' : 'step-' + step}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
