// A node or slot was clicked, or chosen with Enter or the space bar.
const pick = (e) => {
  const at = e.target.closest('[data-pick]'); if (at) trigger('select', {pick: at.dataset.pick});
};
element.addEventListener('click', pick);
element.addEventListener('keydown', (e) => {
  if (e.key === 'Enter' || e.key === ' ') { if (e.target.closest('[data-pick]')) { e.preventDefault(); pick(e); } }
});
