-- Read lists: arrays whose elements are all of one kind, unlike rows (core/rows.lua). This file runs before those that
-- use it while they are read.

-- Return the first element of a list; nil if it is empty.
G.first = function(list) return list[1] end

-- Return the position of each name in a list, for lists of fields to read.
G.positions = function(names)
  local positions = {}
  for at = 1, #names do positions[names[at]] = at end -- while a library is loaded, there is no ipairs
  return positions
end
