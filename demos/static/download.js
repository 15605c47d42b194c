(text) => {
  if (!text) return;
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  link.download = 'events.json'; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
