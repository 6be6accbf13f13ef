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

-- Append two elements to a list, such as a field and its value.
G.append = function(list, one, other)
  list[#list + 1] = one
  list[#list + 1] = other
end

-- Return members with one score, as the arguments of ZADD.
G.scored = function(members, score)
  local list = {}
  for i = 1, #members do list[2 * i - 1], list[2 * i] = score, members[i] end
  return list
end

-- Return the members of a list of members and scores, or of fields and values.
G.members_of = function(found)
  local members = {}
  for i = 1, #found, 2 do members[#members + 1] = found[i] end
  return members
end

-- Return the fields of a table and their values as one list.
G.flat = function(fields)
  local list = {}
  for field, value in pairs(fields) do G.append(list, field, value) end
  return list
end
