(packed) => {
  if (!packed) return;
  const {name, type, text} = JSON.parse(packed);
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name; link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
