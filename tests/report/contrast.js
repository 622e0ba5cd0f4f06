() => {
  const parse = (text) => { const n = text.match(/[\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; })
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color[3] > .99) return color;
    }
    return [255, 255, 255, 1];
  };
  const bad = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || element.closest("script, style, title, desc, details:not([open]) > :not(summary)")) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    seen += 1;
    if (contrast < 4.5 || parseFloat(style.fontSize) < (element.closest("sup") ? 8 : 11)) {
      bad.push([text.slice(0, 40), contrast.toFixed(2), style.fontSize]);
    }
  }
  return { seen, bad };
}
