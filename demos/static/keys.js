// Enter in a number's box is as good as leaving it: the box is left, which is what runs, once.
addEventListener('keydown', (event) => {
  const at = event.target;
  if (event.key === 'Enter' && at.matches && at.matches('input[type=number]')) at.blur();
});
// Arrow keys step, unless the reader is typing, choosing, or on a control that uses them.
addEventListener('keydown', (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const at = event.target;
  if (at.closest && at.closest('input, textarea, select, [contenteditable], [role=listbox], [role=tab]')) return;
  const id = {ArrowRight: 'kd-forward', ArrowLeft: 'kd-back', Home: 'kd-first', End: 'kd-last'}[event.key];
  const button = id && document.getElementById(id);
  if (button && button.offsetParent !== null) { event.preventDefault(); button.click(); }
});
