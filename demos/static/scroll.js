// A picture wider than its box: show what this step touched, and fade the edges that hide more.
const edges = (box) => {
  box.classList.toggle('more-left', box.scrollLeft > 4);
  box.classList.toggle('more-right', box.scrollLeft < box.scrollWidth - box.clientWidth - 4);
};
const boxes = () => element.querySelectorAll('.kd-scroll');
const show = () => requestAnimationFrame(() => boxes().forEach((box) => {
  if (box.scrollWidth > box.clientWidth + 4) {
    const seen = box.getBoundingClientRect();
    const small = ['.now', '.pole'].flatMap((name) => [...box.querySelectorAll(name)])
      .map((mark) => mark.getBoundingClientRect()).filter((mark) => mark.height > 0);
    const at = small.find((mark) => mark.width < seen.width);
    if (at) box.scrollLeft += at.left + at.width / 2 - seen.left - seen.width / 2;
    else if (small.length) box.scrollLeft = 0;  // a whole row: from its beginning, whatever stood there before
  }
  edges(box);
}));
show();
// Scrolling does not bubble; caught on its way down, once for all boxes that come and go.
element.addEventListener('scroll', (e) => {
  if (e.target.matches?.('.kd-scroll')) edges(e.target);
}, {passive: true, capture: true});
watch('value', show);
addEventListener('resize', () => boxes().forEach(edges));
